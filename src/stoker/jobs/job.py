"""A job and what belongs to it, as values. Times are seconds since 1970; what was not measured is None."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from stoker.jobs import states
from stoker.jobs.states import State

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for, checked: a workload with its whole config, or a script with its arguments.

    `stoker.jobs.request` makes it from what a caller sent; nothing else may.
    """

    name: str
    workload: str | None = None
    # All settings of the workload, nested, as `stoker.train.config_file.to_values` has them.
    config: Mapping[str, Any] = field(default_factory=dict)
    # A path inside a folder of the allow-list, resolved.
    script: str | None = None
    arguments: tuple[str, ...] = ()
    # Cards that it needs, and of each how much memory must be free; None: not known.
    gpus: int = 0
    vram_bytes: int | None = None
    # Memory of the machine that must be free before it starts; None: not known.
    ram_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {**asdict(self), "config": dict(self.config), "arguments": list(self.arguments)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Request":
        """What `to_json` told."""
        return cls(**{**told, "arguments": tuple(told["arguments"])})


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process's part of a job: a job that was resumed has several. `token` fences the earlier ones."""

    number: int
    token: int
    engine: str
    # How the engine finds it again; None until it was started.
    handle: str | None
    created: float
    # When its process was first heard of.
    started: float | None = None
    ended: float | None = None
    # done, failed, cancelled, lost; None while it goes on.
    outcome: State | None = None
    error: str | None = None
    # The step that it went on from (None: from the beginning), and the last that it told of.
    first_step: int | None = None
    last_step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it stood when it was read."""

    id: str
    request: Request
    state: State
    created: float
    # Its row in the list: rises from job to job. `before=` of a list is one of these.
    number: int
    # In its line, that for cards or that for slots: 1 is next; None where it is not queued.
    position: int | None = None
    started: float | None = None
    ended: float | None = None
    step: int | None = None
    steps: int | None = None
    # Samples a second and seconds to the end, sustained, as the trainer told them.
    rate: float | None = None
    eta_s: float | None = None
    error: str | None = None
    # Why it still waits ("waits for 1 GPU: 0 of 1 free; pid 4242 holds it"); None where it does not.
    waits_for: str | None = None
    # {"cause", "share", "sentence"}
    verdict: Mapping[str, Any] | None = None
    # The first card that it sees: {"index", "name", "total_bytes", "used_bytes", "utilisation_percent",
    # "power_w"}
    gpu: Mapping[str, Any] | None = None
    # {"rss_bytes", "peak_bytes", "device_peak_bytes"}
    memory: Mapping[str, Any] | None = None
    # Shares of the last steps: {"wait", "copy", "forward", "backward", "update", "other"}
    phases: Mapping[str, float] | None = None
    cancel_asked: bool = False
    attempts: tuple[Attempt, ...] = ()

    @property
    def name(self) -> str:
        """As its owner called it."""
        return self.request.name

    def can(self) -> dict[str, bool]:
        """What may be asked of it now."""
        return {
            "cancel": states.can_cancel(self.state) and not self.cancel_asked,
            "resume": states.can_resume(self.state),
            "retry": states.can_retry(self.state),
            "delete": states.can_delete(self.state),
        }

    def to_json(self) -> dict[str, Any]:
        """As the API tells it."""
        asked = self.request
        return {
            "id": self.id,
            "number": self.number,
            "name": asked.name,
            "workload": asked.workload,
            "script": asked.script,
            "arguments": list(asked.arguments),
            "config": dict(asked.config),
            "gpus": asked.gpus,
            "vram_bytes": asked.vram_bytes,
            "ram_bytes": asked.ram_bytes,
            "state": self.state,
            "position": self.position,
            "waits_for": self.waits_for,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "step": self.step,
            "steps": self.steps,
            "eta_s": self.eta_s,
            "rate": self.rate,
            "error": self.error,
            "verdict": _plain(self.verdict),
            "attempts": [one.to_json() for one in self.attempts],
            "can": self.can(),
            "gpu": _plain(self.gpu),
            "memory": _plain(self.memory),
            "phases": _plain(self.phases),
        }


class Point(NamedTuple):
    """One number of a curve: `name` ("train/loss") at an absolute step. Unique by job, name and step.

    Of these and of lines there are thousands in an answer: a tuple is made in a fifth of a dataclass's time.
    """

    id: int
    job: str
    name: str
    step: int
    value: float
    t: float

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return self._asdict()


class Line(NamedTuple):
    """One line of a job's log."""

    id: int
    job: str
    attempt: int
    t: float
    text: str

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return self._asdict()


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a job.

    `kind` "state" has {"state", "error", "attempt"}; "progress" has {"step", "steps", "rate", "eta_s",
    "phases", "gpu", "memory"}, and only the newest of a job is kept; "verdict" has the verdict; "asked" has
    {"what"}: cancel or resume; "waits" has {"for"}; "deleted" has {}.
    """

    id: int
    job: str
    t: float
    kind: str
    body: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {**asdict(self), "body": dict(self.body)}


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """Part of a list; `next` is the `before` or `after` of the part behind it, None at the end."""

    items: tuple[T, ...]
    next: int | None = None


def _plain(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)
