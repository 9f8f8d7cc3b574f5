"""A run over time in a bounded number of columns, however long it was; read in one pass."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.watch import Step
from stoker.watch.phases import PHASES

# Columns of a picture at the most. A phase is then drawn by some 5 KB; a screen shows 3 pixels or so of each.
MOST_COLUMNS = 240
# What a column is as wide as at first, in seconds; it doubles as a run turns out to be longer.
_NARROWEST = 1 / 64
# Steps in a column, in the mean, where there are enough of them for so many columns.
_ENOUGH_STEPS, _ENOUGH_COLUMNS = 3, 60


@dataclass(frozen=True, kw_only=True)
class Column:
    """The steps that ended in one stretch of time: how many, and the mean seconds of each phase."""

    began: float
    steps: int
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The mean step."""
        return sum(self.phases.values())


@dataclass(frozen=True, kw_only=True)
class Series:
    """Columns in order of time, each `width` seconds wide; one in which no step ended is not there."""

    began: float
    ended: float
    width: float
    columns: tuple[Column, ...]


@dataclass(slots=True)
class _Sum:
    steps: int = 0
    phases: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))

    def add(self, other: "_Sum") -> None:
        self.steps += other.steps
        self.phases = [a + b for a, b in zip(self.phases, other.phases, strict=True)]


def thin(steps: Iterable[Step], *, most: int = MOST_COLUMNS) -> Series | None:
    """The steps in at most so many columns, all of the same width; None of no step.

    The first step holds imports, compiling and warm-up: it is where time begins, and in no column.
    """
    every = iter(steps)
    first = next(every, None)
    if first is None:
        return None
    width, sums, last = _NARROWEST, dict[int, _Sum](), first.t
    for step in every:
        last = max(last, step.t)
        at = int((step.t - first.t) / width)
        while at >= most:
            sums, width = _halved(sums), 2 * width
            at //= 2
        found = sums.setdefault(max(0, at), _Sum())
        found.add(_Sum(1, [getattr(step, name) or 0.0 for name in PHASES]))
    made = sum(one.steps for one in sums.values())
    while len(sums) > _ENOUGH_COLUMNS and made < _ENOUGH_STEPS * len(sums):
        sums, width = _halved(sums), 2 * width
    columns = tuple(
        Column(
            began=first.t + at * width,
            steps=one.steps,
            phases={name: spent / one.steps for name, spent in zip(PHASES, one.phases, strict=True)},
        )
        for at, one in sorted(sums.items())
    )
    return Series(began=first.t, ended=last, width=width, columns=columns) if columns else None


def _halved(sums: Mapping[int, _Sum]) -> dict[int, _Sum]:
    """Two columns in one."""
    halved: dict[int, _Sum] = {}
    for at, one in sums.items():
        halved.setdefault(at // 2, _Sum()).add(one)
    return halved
