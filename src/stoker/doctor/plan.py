"""The plan: cures put together to three options, each with what it gains, needs, risks and how it is done."""

from dataclasses import dataclass
from typing import Any, Literal

from stoker.doctor.model import Interval

Kind = Literal["same", "redraw", "numerics", "optimization"]
# From what leaves the maths alone to what changes it most.
KINDS: tuple[Kind, ...] = ("same", "redraw", "numerics", "optimization")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of an option: what, why, and how it is applied.

    `apply` are lines to write or commands to give. `mind` is how it can backfire. `consequences` are what a
    change of the optimization means for learning rate and schedule.
    """

    change: str
    value: Any
    kind: Kind
    cause: str
    text: str
    apply: tuple[str, ...]
    risk: str = ""
    mind: str = ""
    consequences: str = ""

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**vars(self), "apply": list(self.apply)}


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that an option needs, beside those that are free; None where it was not measured."""

    need: int | None
    free: int | None

    @property
    def fits(self) -> bool | None:
        """Whether there is room."""
        return None if self.need is None or self.free is None else self.need <= self.free

    def to_json(self) -> dict[str, Any]:
        """Both, and whether there is room."""
        return {"need": self.need, "free": self.free, "fits": self.fits}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of three. `epoch` and `total` are seconds; `alike` names the option that it is no other than."""

    name: str
    changes: tuple[Step, ...]
    kind: Kind
    predicted: Interval | None
    limit: str | None
    epoch: Interval | None
    total: Interval | None
    vram: Need
    ram: Need
    risk: str
    alike: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The option as `stoker doctor --json` prints it."""
        return {
            "name": self.name,
            "changes": [step.to_json() for step in self.changes],
            "kind": self.kind,
            "predicted": None if self.predicted is None else self.predicted.to_json(),
            "limit": self.limit,
            "epoch": None if self.epoch is None else self.epoch.to_json(),
            "total": None if self.total is None else self.total.to_json(),
            "vram": self.vram.to_json(),
            "ram": self.ram.to_json(),
            "risk": self.risk,
            "alike": self.alike,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options, what the run takes as it is, and in a sentence what to make of them."""

    summary: str
    options: tuple[Option, ...]
    rate: float
    epoch: float | None
    total: float | None

    def to_json(self) -> dict[str, Any]:
        """The plan as `stoker doctor --json` prints it."""
        return {
            "summary": self.summary,
            "rate": self.rate,
            "epoch": self.epoch,
            "total": self.total,
            "options": [option.to_json() for option in self.options],
        }
