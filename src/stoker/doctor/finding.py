"""What a cause says of a run: that it is one, and why; or that it is not, and by which measurement."""

from dataclasses import dataclass
from typing import Literal

# The least share of a step that is worth an alarm.
ALARM = 0.10
# Of what the model takes, what the loader may take by itself and surely not be what the loop waits for: the
# loop waits for cores then, as with 0.8 of them in other hands, 4.6 ms a batch and a model of 28 ms.
KEEPS_UP = 0.5


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What to do about a cause. `change` is the change's id; its kind says what it does to the maths."""

    change: str
    text: str
    kind: Literal["same", "redraw", "numerics", "optimization"] = "same"
    risk: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """It is a cause: the share of the step that it costs, how sure that is (0 to 1), and why.

    A share of None was not measured: a switch that is on, a limit that is reached. Such a cause comes before
    those that it may be behind. `slows`: it takes time, or the run's life; one that does neither, as memory
    that is held twice, comes after all that do. `computes`: it lies in computing itself, and its cure raises
    that ceiling.
    `cures` are those of the cause that can help here; None: all of them.
    """

    share: float | None
    certainty: float
    evidence: tuple[str, ...]
    computes: bool = False
    slows: bool = True
    cures: tuple[Cure, ...] | None = None

    @property
    def weight(self) -> tuple[bool, float]:
        """By which causes are put in order, the greatest first."""
        return self.slows, self.certainty if self.share is None else self.share * self.certainty


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """It is no cause here, by this measurement."""

    by: str


# None: it cannot be told by what was measured.
Judgement = Found | RuledOut | None
