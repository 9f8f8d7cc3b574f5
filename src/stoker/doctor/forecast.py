"""The card's memory at any size of batch, with a range: what a process of its own would take. Pure.

Best by runs of other sizes: their allocations are scaled and played through a model of torch's allocator
(`allocations.py`, `segments.py`), and that is checked at a size that ran. Tensors that grow in a line, or in
a square by three sizes, are then known to the byte. Workspaces are not, since libraries choose kernels by the
size, and which of two is chosen can move a peak by 15% (a 3D U-Net on an H200). At some sizes they are known
from convolutions that ran alone (`workspaces.py`): of that U-Net each of 7 sizes is then told to the byte
from any two others. Elsewhere a size is played with its workspaces as lines and as those of each run, and all
that comes out is the range. Of 32 sizes of three networks on an H200, each told so from three others, 29 were
in it; the 3 were smaller than all that had run.

Where allocations were not recorded, do not match, or the model does not reserve what torch did, a line
through peaks is what is left (`peaks.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import NamedTuple

from stoker.doctor.allocations import FAITHFUL, MOST_EVENTS, Allocations, at_size, bends, do_match
from stoker.doctor.peaks import CLOSE, Line, Point, fit, off_by
from stoker.doctor.workspaces import Workspaces

# By how much a range is wider than what came out, and a line's where no size has checked it, as shares.
_WIDER, _UNCHECKED = 0.02, 0.10
# Events played for a size, 0.3 s at 5 us an event: about 20 sizes are told. But never less than two plays.
_MOST_PLAYED, _LEAST_PLAYS = 60_000, 2


class Need(NamedTuple):
    """Bytes, with the least and the most that they may turn out to be."""

    low: int
    mid: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What predictions rest on: `runs` to play, or else `line`, both without the context.

    `chosen` are workspaces of calls that ran alone, for sizes that did not run otherwise.
    `ran` are real peaks of processes of their own, in their first steps; `grown` is the loop's later peak, as
    so many times its first. `error` is by how much a size that ran was missed by what was told without it,
    `elsewhere` the same for sizes of which no call ran alone; `spread` a share for the range, `bent` why
    tensors that grow faster than in a line are not sure.
    """

    line: Line
    runs: tuple[Allocations, ...] = ()
    ran: tuple[Point, ...] = ()
    chosen: Workspaces = field(default_factory=Workspaces)
    error: float | None = None
    elsewhere: float | None = None
    spread: float = _WIDER
    grown: float = 1.0
    bent: str | None = None
    _told: dict[int, Need | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def holds(self) -> bool:
        """Whether it was checked, and was close."""
        return self.bent is None and self.error is not None and self.error <= CLOSE

    @property
    def why(self) -> str | None:
        """What is lacking before it may be trusted."""
        if self.bent is not None:
            return self.bent
        if not self.runs:
            if self.line.why is not None or self.holds or self.error is None:
                return self.line.why
            whose = "the loop's own peak" if len(self.ran) == 1 else "a peak of a process of its own"
            return f"{whose} is off the line by {self.error:.1%}"
        if self.error is None:
            return "it was checked at no third size"
        return None if self.holds else f"a size that ran was missed by {self.error:.1%}"

    @property
    def unlike(self) -> tuple[str, ...]:
        """What the runs and the calls that ran alone do not have in common, in words."""
        return self.chosen.unlike({run.samples: run.parts.workspaces for run in self.runs})

    def at(self, samples: int) -> Need | None:
        """Bytes for a batch of so many samples; None without two sizes."""
        if samples not in self._told:
            need = self._foretell(samples)
            self._told[samples] = need and need._replace(high=round(need.high * self.grown))
        return self._told[samples]

    def _foretell(self, samples: int) -> Need | None:
        for known, peak in self.ran:
            if known == samples:
                return Need(peak, peak, peak)
        if self.runs:
            return self._play(samples)
        line = self.line
        if line.fixed is None or line.per_sample is None or line.ends is None:
            return None
        mid, off = line.fixed + line.per_sample * samples, off_by(line.ends, self.spread, samples)
        return Need(max(0, mid - off), mid, mid + off)

    def _play(self, samples: int) -> Need | None:
        need, off = _played(self.runs, samples, self.chosen), self.elsewhere
        if need is None or off is None or samples in self.chosen.sizes:
            return need
        low, mid, high = need
        return Need(min(low, round(mid * (1 - off))), mid, max(high, round(mid * (1 + off))))


def foresee(resized: Sequence[Point], fresh: Sequence[Allocations], grown: float = 1.0) -> Forecast:
    """By peaks of sizes that followed each other in one process, and runs in processes of their own."""
    ran = tuple((run.samples, run.peak) for run in fresh)
    runs = _alike(fresh)
    chosen = Workspaces(calls=tuple(call for run in fresh for call in run.probed))
    if len(runs) > 1:
        bent = _bent(runs)
        # Two of three sizes see no square: leaving out the third would check another prediction.
        checks = runs[1:-1] if bent is None or len(runs) > 3 else ()
        return Forecast(
            line=fit(ran),
            runs=runs,
            ran=ran,
            chosen=chosen,
            error=_missed_by(runs, checks, chosen),
            elsewhere=_missed_by(runs, checks, Workspaces()) if chosen.calls else None,
            grown=grown,
            bent=bent,
        )
    line = fit(ran)
    if not line.holds and len(resized) > len(ran):
        line = fit(resized)
    if line.fixed is None or line.per_sample is None:
        return Forecast(line=line, ran=ran, grown=grown)
    misses = [abs(line.fixed + line.per_sample * size - peak) / peak for size, peak in ran if size > 1]
    error = None if line.error is None else max([line.error, *misses])
    spread = max([_UNCHECKED if line.error is None else max(_WIDER, line.error), *misses])
    return Forecast(line=line, ran=ran, error=error, spread=spread, grown=grown)


def _missed_by(
    runs: Sequence[Allocations], checks: Sequence[Allocations], chosen: Workspaces
) -> float | None:
    """The most by which one that ran is missed by what the others tell of it, as a share."""
    missed = []
    for run in checks:
        told = _played([one for one in runs if one is not run], run.samples, chosen)
        missed += [] if told is None else [abs(told.mid - run.peak) / run.peak]
    return max(missed, default=None)


def _bent(runs: Sequence[Allocations]) -> str | None:
    """Why tensors that are no line keep predictions from being sure; None where few, or checked."""
    found, few = bends(runs), FAITHFUL * runs[-1].peak
    if found.others > few:
        return "tensors grow neither in a line with the batch nor in a square"
    if found.squares > few and len(runs) == 3:
        return "tensors grow with the square of the batch, which was checked at no fourth size"
    return None


def _alike(fresh: Sequence[Allocations]) -> tuple[Allocations, ...]:
    """Runs that can be played, the longest row of those that make the same allocations; by size."""
    playable = [
        run for run in fresh if run.samples > 1 and len(run.events) <= MOST_EVENTS and run.is_faithful
    ]
    rows: list[list[Allocations]] = []
    for run in sorted(playable, key=lambda one: one.samples):
        row = next((row for row in rows if do_match(row[0], run)), None)
        if row is None:
            rows.append([run])
        else:
            row.append(run)
    # Of rows as long as each other the one of larger sizes: those are what is asked for.
    longest: list[Allocations] = max(reversed(rows), key=len) if rows else []
    return tuple(longest)


def _played(runs: Sequence[Allocations], samples: int, chosen: Workspaces) -> Need | None:
    """The middle one by the two runs around the size, or the two next to it; the range by any two of them.

    Of long runs not all: those by the nearest come first, and as many are played as there is time for.
    """
    if len(runs) < 2:
        return None
    around = min(max(sum(run.samples <= samples for run in runs) - 1, 0), len(runs) - 2)
    near = sorted(runs, key=lambda run: abs(run.samples - samples))
    nearest = runs[around], runs[around + 1]
    pairs = [nearest, *(pair for pair in combinations(near, 2) if not _is_same(pair, nearest))]
    plays = max(_LEAST_PLAYS, _MOST_PLAYED // max(1, *(len(run.events) for run in runs)))
    peaks = []
    for one, other, like in [(*pair, like) for pair in pairs for like in (None, *pair)][:plays]:
        third = next((run for run in near if run is not one and run is not other), None)
        play = at_size(one, other, samples, like, third, chosen)
        peaks += [] if play is None else [play.played]
    if not peaks:
        return None
    mid = round(median(peaks[:3]))
    most = max(peaks) + chosen.lacking([run.samples for run in runs], samples)
    return Need(round(min(peaks) * (1 - _WIDER)), mid, round(most * (1 + _WIDER)))


def _is_same(one: tuple[Allocations, ...], other: tuple[Allocations, ...]) -> bool:
    return {run.samples for run in one} == {run.samples for run in other}
