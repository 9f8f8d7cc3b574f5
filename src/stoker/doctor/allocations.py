"""A run's allocations and frees on a card, in order: what they come to at another size of batch. Pure.

Two runs of a script that differ in the batch alone make the same allocations in the same order. Most are a
line in the batch; what compares each sample with each is a square (the logits of CLIP or SimCLR), which takes
three runs to be seen. Workspaces are neither: a library chooses its kernels by the size (`workspaces.py`).
They need not be there in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from stoker.doctor.segments import Segments
from stoker.doctor.skeleton import Parts, Taken, parts_of
from stoker.doctor.workspaces import Probed, Workspaces

# Of the real peak: by how much playing a run again may miss it before the model is not trusted for it.
FAITHFUL = 0.01
# Longer runs are not played: of one this long, two plays of each of some 20 sizes take 5 s.
MOST_EVENTS = 40_000
# A tensor is off a line or a square by more than this share of it, and more than rounding is in bytes.
_OFF, _ROUNDING = 0.01, 1024
_Point = tuple[int, int]  # samples, bytes


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """One run with batches of so many samples, from its first allocation on.

    `events` are numbers: bytes for an allocation, minus n for the free of the nth of them (the first is 1),
    and 0 where the script emptied the cache. `streams` are those of allocations that are not of the first
    one. `peak` is what torch had reserved at the most. `probed` are calls that the same process ran alone.
    """

    samples: int
    events: tuple[int, ...]
    streams: dict[int, int]
    peak: int
    probed: tuple[Probed, ...] = ()

    @cached_property
    def played(self) -> int:
        """The most bytes reserved by the model of the allocator."""
        segments, made = Segments(), 0
        for event in self.events:
            if event > 0:
                made += 1
                segments.allocate(made, event, self.streams.get(made, 0))
            elif event:
                segments.free(-event)
            else:
                segments.release()
        return segments.peak

    @cached_property
    def parts(self) -> Parts:
        """It in two."""
        return parts_of(self.events, self.streams)

    @property
    def is_faithful(self) -> bool:
        """Whether the model reserves what torch did."""
        return abs(self.played - self.peak) <= FAITHFUL * self.peak


class Bends(NamedTuple):
    """Bytes, at the largest size and over all steps, of tensors that grow faster than in a line.

    `squares` of those that a square goes through, `others` of those that it misses at a fourth size.
    """

    squares: int = 0
    others: int = 0


def do_match(one: Allocations, other: Allocations) -> bool:
    """Whether two runs of different sizes make the same allocations in the same order."""
    return one.samples != other.samples and one.parts.do_match(other.parts)


def bends(runs: Sequence[Allocations]) -> Bends:
    """What is no line in runs that match each other, by size; nothing is seen by fewer than three.

    What grows slower than a line is not told: two sizes then say too much, which is the safe side.
    """
    if len(runs) < 3:
        return Bends()
    squares = others = 0
    middle = len(runs) // 2
    for sizes in zip(*(run.parts.skeleton for run in runs), strict=True):
        if sizes[0] <= 0 or sizes[0] == sizes[-1]:
            continue
        known = [(run.samples, size) for run, size in zip(runs, sizes, strict=True)]
        if not any(_is_bent(known[0], point, known[-1]) for point in known[1:-1]):
            continue
        square = partial(_square, (known[0], known[middle], known[-1]))
        if all(_is_close(square(samples), size) for samples, size in known):
            squares += sizes[-1]
        else:
            others += sizes[-1]
    return Bends(squares, others)


def at_size(
    one: Allocations,
    other: Allocations,
    samples: int,
    like: Allocations | None = None,
    third: Allocations | None = None,
    chosen: Workspaces | None = None,
) -> Allocations | None:
    """What the run would allocate with so many samples, by two sizes of it; None where they do not match.

    Its workspaces are those that were `chosen` for calls that ran alone at this size, where both runs have
    those that were chosen at theirs. Others are lines, or as large for each sample as those of the run that
    it is to be like. By a `third`, that matches both, tensors that grow faster than in a line are squares.
    """
    if not do_match(one, other):
        return None
    here, there = one.parts, other.parts
    along = (samples - one.samples) / (other.samples - one.samples)
    its = like or (one if abs(along) <= abs(along - 1) else other)
    nearer = its.parts
    events: list[int] = []
    streams: dict[int, int] = {}
    names: list[int] = []
    made = kept = 0
    for position, workspaces in enumerate(nearer.workspaces):
        first, second = here.workspaces[position], there.workspaces[position]
        options: Sequence[Taken] = ()
        if chosen is not None and (first or second):
            known = (one.samples, here.place(position)), (other.samples, there.place(position))
            options = chosen.options(known, samples)
        sizes: Sequence[int]
        if options:
            sizes = options[-1 if like is other else 0]
        elif like is None and len(first) == len(second):
            sizes = [_between(a, b, along) for a, b in zip(first, second, strict=True)]
        else:
            sizes = [max(1, round(size * samples / its.samples)) for size in workspaces]
        for size in sizes:
            made += 1
            events += [size, -made]
        if position == len(nearer.skeleton):
            break
        a, b = here.skeleton[position], there.skeleton[position]
        if a > 0:
            made += 1
            names.append(made)
            size = _between(a, b, along)
            if third is not None and a != b:
                three = (one.samples, a), (other.samples, b), (third.samples, third.parts.skeleton[position])
                points = sorted(three)
                if _is_bent(*points):
                    size = max(1, round(_square(points, samples)))
            events.append(size)
            if nearer.streams[kept]:
                streams[made] = nearer.streams[kept]
            kept += 1
        else:
            events.append(-names[-a - 1] if a else 0)
    return Allocations(samples=samples, events=tuple(events), streams=streams, peak=0)


def _between(one: int, other: int, along: float) -> int:
    return max(1, round(one + (other - one) * along))


def _is_bent(low: _Point, middle: _Point, high: _Point) -> bool:
    """Whether a line through the outer two passes above the middle one."""
    along = (middle[0] - low[0]) / (high[0] - low[0])
    line = _between(low[1], high[1], along)
    return line > middle[1] and not _is_close(line, middle[1])


def _is_close(told: float, real: int) -> bool:
    return abs(told - real) <= max(_ROUNDING, _OFF * real)


def _square(known: Sequence[_Point], samples: int) -> float:
    """At a size, of the square through three."""
    (a, one), (b, two), (c, three) = known
    return (
        one * (samples - b) * (samples - c) / ((a - b) * (a - c))
        + two * (samples - a) * (samples - c) / ((b - a) * (b - c))
        + three * (samples - a) * (samples - b) / ((c - a) * (c - b))
    )
