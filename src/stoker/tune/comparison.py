"""Whether a change is faster beyond doubt: rates of alternated runs, and the interval of their ratio. Pure.

Runs of the same settings differ more than stretches of one run do (the page cache, where memory lies, what
else the machine does), so what counts as one observation is a run: the median of its stretches. How much runs
of the same settings differ is learnt from all settings together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, inf, isinf, log, sqrt
from statistics import fmean, median
from typing import Literal

# A change has to be faster by this to be worth a setting.
WORTH = 1.02
# Of 90% intervals: Student's t at 95%, for 1, 2, 3, ... degrees of freedom, then for many.
_T95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
_T95_MANY = 1.65
# Runs whose medians agree by chance to a thousandth do not make the next one certain to that.
_LEAST_SPREAD = 0.003

Stretches = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast, with its 90% interval; an end that is not known is 0 or infinite."""

    low: float
    mid: float
    high: float

    @property
    def says(self) -> Literal["faster", "not faster", "open"]:
        """Whether it is faster by what is worth a setting."""
        if self.low > WORTH:
            return "faster"
        return "not faster" if self.high < WORTH else "open"

    @property
    def within(self) -> str:
        """The interval in words.

        >>> Ratio(low=3.02, mid=3.21, high=inf).within
        '3.02 or more'
        """
        if isinf(self.high):
            return f"{self.low:.2f} or more" if self.low else "interval not known"
        return f"{self.low:.2f} to {self.high:.2f}"


def compare(before: Sequence[Stretches], after: Sequence[Stretches], spread: "Spread") -> Ratio:
    """The ratio of two settings' rates, by their runs."""
    ratio = fmean(log(median(run)) for run in after) - fmean(log(median(run)) for run in before)
    half = spread.t * spread.deviation * sqrt(1 / len(before) + 1 / len(after))
    return Ratio(low=exp(ratio - half), mid=exp(ratio), high=exp(ratio + half) if half < inf else inf)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much runs of the same settings differ.

    The deviation of their rates' logarithms, and from how many differences it is known.
    """

    deviation: float
    freedom: int

    @property
    def t(self) -> float:
        """How many deviations hold nine in ten, at what is known of them."""
        return _T95[self.freedom - 1] if self.freedom <= len(_T95) else _T95_MANY


def spread_of(runs: Mapping[str, Sequence[Stretches]]) -> Spread:
    """From all settings that were run more than once; unbounded where none was."""
    squares, freedom = 0.0, 0
    for of_one in runs.values():
        logs = [log(median(run)) for run in of_one]
        squares += sum((value - fmean(logs)) ** 2 for value in logs)
        freedom += len(logs) - 1
    if not freedom:
        return Spread(deviation=inf, freedom=1)
    return Spread(deviation=hypot(sqrt(squares / freedom), _LEAST_SPREAD), freedom=freedom)
