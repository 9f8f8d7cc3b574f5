"""What the dispatcher asks of an engine. By a handle, a text, it finds a job's process again."""

from dataclasses import dataclass
from typing import Literal, Protocol

from stoker.jobs.job import Attempt, Job

# `pending`: the engine has it, and has not started it yet. `gone`: there is no such process any more.
Phase = Literal["pending", "alive", "gone"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job may start now: cards by their uuid."""

    gpus: tuple[str, ...] = ()


class Engine(Protocol):
    """Starts runners. Nothing here waits for a job."""

    name: str

    def find_place(self, job: Job, running: "list[Running]") -> Place | str:
        """Where a job may start beside those that run; or why it has to wait, for a person."""

    def start(self, job: Job, attempt: Attempt, place: Place) -> str:
        """Start its runner; the handle.

        EngineFailed where that cannot be, and EngineAway where that is not this job's fault.
        """

    def poll(self, handle: str) -> Phase:
        """Whether its runner is there."""

    def stop(self, handle: str, *, save: bool) -> None:
        """Ask the runner to save and end, or, without `save`, kill it and all that it started."""

    def last_words(self, job: Job, attempt: Attempt) -> str | None:
        """What there is to tell of an attempt's runner that is gone, in a line; None: nothing."""

    def adopt(self, handle: str) -> bool:
        """Whether a runner that an earlier dispatcher started is this engine's to look after."""

    def close(self) -> None:
        """Let go of connections; runners go on."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A job that has a process, as far as a place beside it matters."""

    job: Job
    handle: str | None
    # Whose the handle is; None: of the engine that is asked.
    engine: str | None = None
