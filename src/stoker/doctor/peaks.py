"""Peaks of the card's memory by the size of a batch: a straight line, and what it still needs. Pure.

It goes through the smallest and the largest size that ran, and is checked at every other one. A batch of 1 is
no point of it: kernels and workspaces differ there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[int, int]
# By how much the line may miss a size that it was not made from.
CLOSE = 0.03


@dataclass(frozen=True, kw_only=True)
class Line:
    """Peaks by samples: a straight line, how far it missed, and what to run before it may be trusted.

    `ends` are the sizes that it goes through.
    """

    fixed: int | None = None
    per_sample: int | None = None
    error: float | None = None
    ends: tuple[Point, Point] | None = None
    asks: tuple[int, ...] = ()
    why: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it was checked, and was close."""
        return self.error is not None and self.error <= CLOSE


def fit(points: Sequence[Point]) -> Line:
    """A line through peaks (samples, bytes): by the smallest and the largest size, checked by those between.

    Batches of 1 are left out. With two sizes it is not checked, and a third is asked for; where it misses
    one by more than 3%, the upper sizes alone are tried, and then more sizes are asked for.
    """
    known = sorted({samples: peak for samples, peak in points if samples > 1}.items())
    if len(known) < 2:
        sizes = [samples for samples, _ in known] or [2]
        return Line(asks=(2 * sizes[0], 4 * sizes[0]), why=f"{len(known)} sizes above 1 make no line")
    if len(known) == 2:
        return _through(known, asks=_between(known), why="the line was checked at no third size")
    for first in range(len(known) - 2):  # small sizes may have workspaces of their own
        line = _through(known[first:])
        if line.holds and (line.per_sample or 0) >= 0:
            return line
    error = _through(known).error
    why = f"the line misses a size that ran by {error:.1%}: more sizes are needed"
    return _through(known, asks=_between(known), why=why)


def off_by(ends: tuple[Point, Point], spread: float, samples: int) -> int:
    """Bytes that the line through two peaks may be off by, at a size, where each of them is by a share.

    Between them that is the same share; beyond them it grows, and the more the closer together they are.
    """
    (low, least), (high, most) = ends
    upper = (samples - low) / (high - low)
    return round(spread * (abs(1 - upper) * least + abs(upper) * most))


def _through(known: Sequence[Point], *, asks: tuple[int, ...] = (), why: str | None = None) -> Line:
    (low, least), (high, most) = known[0], known[-1]
    each = (most - least) / (high - low)
    fixed = least - each * low
    missed = [abs(fixed + each * samples - peak) / peak for samples, peak in known[1:-1]]
    return Line(
        fixed=round(fixed),
        per_sample=round(each),
        error=max(missed, default=None),
        ends=(known[0], known[-1]),
        asks=asks,
        why=why,
    )


def _between(known: Sequence[Point]) -> tuple[int, ...]:
    """A size in the widest gap, and one above."""
    sizes = [samples for samples, _ in known]
    gap = max(range(len(sizes) - 1), key=lambda at: sizes[at + 1] - sizes[at])
    middle = (sizes[gap] + sizes[gap + 1]) // 2
    return (middle, 2 * sizes[-1]) if middle not in sizes else (2 * sizes[-1],)
