"""What a cause says of a run: that it is one, and why; or that it is not, and by which measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# The least share of a step that is worth an alarm.
ALARM = 0.10
# Of what the model takes, what the loader may take by itself and surely not be what the loop waits for: the
# loop waits for cores then, as with 0.8 of them in other hands, 4.6 ms a batch and a model of 28 ms.
KEEPS_UP = 0.5


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What to do about a cause. `change` is the change's id; its kind says what it does to the maths.

    `value` is the setting's, where the cause tells it.
    """

    change: str
    text: str
    kind: Literal["same", "redraw", "numerics", "optimization"] = "same"
    risk: str = ""
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """It is a cause: the share of the step that it costs, how sure that is (0 to 1), and why.

    A share of None was not measured: a switch that is on, a limit that is reached. Such a cause comes before
    those that it may be behind. `slows`: it takes time, or the run's life; one that does neither, as memory
    held twice, comes after all that do. `computes`: it lies in computing itself, and its cure raises that
    ceiling.
    `cures` are those of the cause that can help here; None: all of them.
    Of the loader, `frees` are the parts of making a batch that its cure leaves out, as shares of them,
    `takes` what of its time the loader then takes otherwise, and `overlaps`, whether batches are then made
    beside the loop. `weighs` puts it in order, where that is not the share, but the most that it can be, say;
    `behind`: it is no cause without another.
    """

    share: float | None
    certainty: float
    evidence: tuple[str, ...]
    computes: bool = False
    slows: bool = True
    cures: tuple[Cure, ...] | None = None
    frees: Mapping[str, float] = field(default_factory=dict)
    takes: float = 1.0
    overlaps: bool = False
    weighs: float | None = None
    behind: bool = False

    @property
    def is_minor(self) -> bool:
        """Whether it is not worth an alarm: by all that is lost beside it, where its cure saves a part."""
        costs = self.share if self.weighs is None else self.weighs
        return costs is not None and costs < ALARM

    @property
    def weight(self) -> tuple[bool, float]:
        """By which causes are put in order, the greatest first."""
        costs = self.share if self.weighs is None else self.weighs
        return self.slows, self.certainty if costs is None else costs * self.certainty


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """It is no cause here, by this measurement."""

    by: str


# None: it cannot be told by what was measured.
Judgement = Found | RuledOut | None
