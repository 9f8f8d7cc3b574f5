"""The card's memory at any size of batch, with a range: what a process of its own would take. Pure.

Best by runs of other sizes: their allocations are scaled and played through a model of torch's allocator
(`allocations.py`, `segments.py`), and that is checked at a size that ran. Tensors are then known to the byte;
workspaces are not, since libraries choose kernels by the size, and which of two is chosen can move a peak by
15% (a 3D U-Net on an H200). So a size is played with its workspaces as lines and as those of each run, and
all that comes out is the range. Of 32 sizes of three networks on an H200, each told from three others, 29
were in it; the 3 were smaller than all that had run.

Where allocations were not recorded, do not match, or the model does not reserve what torch did, a line
through peaks is what is left (`peaks.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

from stoker.doctor.allocations import Allocations, at_size
from stoker.doctor.peaks import CLOSE, Line, Point, fit, off_by

# By how much a range is wider than what came out, and a line's where no size has checked it, as shares.
_WIDER, _UNCHECKED = 0.02, 0.10
# Longer runs are not played: at 2 us an event and 9 plays a size it would take seconds.
_MOST_EVENTS = 40_000


class Need(NamedTuple):
    """Bytes, with the least and the most that they may turn out to be."""

    low: int
    mid: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What predictions rest on: `runs` to play, or else `line`, both without the context.

    `ran` are real peaks of processes of their own. `error` is by how much a size that ran was missed by what
    was told without it, `spread` a share for the range.
    """

    line: Line
    runs: tuple[Allocations, ...] = ()
    ran: tuple[Point, ...] = ()
    error: float | None = None
    spread: float = _WIDER
    _told: dict[int, Need | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def holds(self) -> bool:
        """Whether it was checked, and was close."""
        return self.error is not None and self.error <= CLOSE

    @property
    def why(self) -> str | None:
        """What is lacking before it may be trusted."""
        if not self.runs:
            return self.line.why
        if self.error is None:
            return "it was checked at no third size"
        return None if self.holds else f"a size that ran was missed by {self.error:.1%}"

    def at(self, samples: int) -> Need | None:
        """Bytes for a batch of so many samples; None without two sizes."""
        if samples not in self._told:
            self._told[samples] = self._foretell(samples)
        return self._told[samples]

    def _foretell(self, samples: int) -> Need | None:
        for known, peak in self.ran:
            if known == samples:
                return Need(peak, peak, peak)
        if self.runs:
            return _played(self.runs, samples)
        line = self.line
        if line.fixed is None or line.per_sample is None or line.ends is None:
            return None
        mid, off = line.fixed + line.per_sample * samples, off_by(line.ends, self.spread, samples)
        return Need(max(0, mid - off), mid, mid + off)


def foresee(resized: Sequence[Point], fresh: Sequence[Allocations]) -> Forecast:
    """By peaks of sizes that followed each other in one process, and runs in processes of their own."""
    ran = tuple((run.samples, run.peak) for run in fresh)
    runs = _alike(fresh)
    if len(runs) > 1:
        missed = []
        for run in runs[1:-1]:
            told = _played([one for one in runs if one is not run], run.samples)
            missed += [] if told is None else [abs(told.mid - run.peak) / run.peak]
        return Forecast(line=fit(ran), runs=runs, ran=ran, error=max(missed, default=None))
    line = fit(ran)
    if not line.holds and len(resized) > len(ran):
        line = fit(resized)
    if line.fixed is None or line.per_sample is None:
        return Forecast(line=line, ran=ran)
    misses = [abs(line.fixed + line.per_sample * size - peak) / peak for size, peak in ran if size > 1]
    error = None if line.error is None else max([line.error, *misses])
    spread = max([_UNCHECKED if line.error is None else max(_WIDER, line.error), *misses])
    return Forecast(line=line, ran=ran, error=error, spread=spread)


def _alike(fresh: Sequence[Allocations]) -> tuple[Allocations, ...]:
    """Runs that can be played, the longest row of those that make the same allocations; by size."""
    playable = [
        run for run in fresh if run.samples > 1 and len(run.events) <= _MOST_EVENTS and run.is_faithful
    ]
    rows: list[list[Allocations]] = []
    for run in sorted(playable, key=lambda one: one.samples):
        row = next((row for row in rows if at_size(row[0], run, run.samples) is not None), None)
        if row is None:
            rows.append([run])
        else:
            row.append(run)
    # Of rows as long as each other the one of larger sizes: those are what is asked for.
    longest: list[Allocations] = max(reversed(rows), key=len) if rows else []
    return tuple(longest)


def _played(runs: Sequence[Allocations], samples: int) -> Need | None:
    """The middle one by the two runs around the size, or the two next to it; the range by any two of them."""
    if len(runs) < 2:
        return None
    above = sum(run.samples <= samples for run in runs)
    nearest = list(pairwise(runs))[min(max(above - 1, 0), len(runs) - 2)]
    peaks: dict[tuple[int, int], list[int]] = {}
    for one, other in combinations(runs, 2):
        plays = [at_size(one, other, samples, like) for like in (None, one, other)]
        peaks[one.samples, other.samples] = [play.played for play in plays if play is not None]
    every = [peak for some in peaks.values() for peak in some]
    mid = round(median(peaks[nearest[0].samples, nearest[1].samples]))
    return Need(round(min(every) * (1 - _WIDER)), mid, round(max(every) * (1 + _WIDER)))
