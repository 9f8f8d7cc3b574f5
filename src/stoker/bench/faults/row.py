"""A row of the campaign: what is done to which part, how often, and what is good enough."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stoker.bench.faults.judge import GOOD, Outcome, Seen
from stoker.bench.faults.scene import Scene

Part = Literal["watch", "doctor", "feed", "stage", "train", "tune", "jobs"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of fault.

    `act` does it once, at a moment and a place that the scene's chance says, and tells what it saw. `good`
    are the outcomes that hold: more is promised where only one of them is named. `needs` are of
    `stoker.ward.needs`, or `mounts`: where the machine lacks one, the row is not run, and says so.
    `seconds` is what a trial takes, about.
    """

    name: str
    part: Part
    fault: str
    counted: str
    act: Callable[[Scene], Seen]
    times: int
    seconds: float
    good: frozenset[Outcome] = GOOD
    needs: tuple[str, ...] = ()


GOES_ON: frozenset[Outcome] = frozenset({"goes_on"})
CLEAR_ERROR: frozenset[Outcome] = frozenset({"clear_error"})
