"""What a run's steps come to over time: growing, more and more going in, stalls that come again. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from stoker.watch import Step

# Steps of which a slope or a stall can be told.
_FEWEST = 16
# Steps that stand out, for what holds them up to be one that comes again.
_LEAST_STALLS = 3


def growth_of(seconds: Sequence[float]) -> tuple[float | None, float | None]:
    """How much longer the last fifth of the steps took than the first, by their medians; 1 without a trend.

    And the share of all of them that lies above the first fifth.

    A machine that was busy for a while makes some steps long; what grows makes nearly every step longer than
    nearly all before it.
    """
    if len(seconds) < 2 * _FEWEST:
        return None, None
    part = len(seconds) // 5
    parts = [median(seconds[at : at + part]) for at in range(0, part * 5, part)]
    grows = all(later > before for before, later in pairwise(parts))
    return (parts[-1] / parts[0], max(0.0, 1 - parts[0] / fmean(seconds))) if grows else (1.0, 0.0)


def more_work_of(sizes: Sequence[int]) -> float | None:
    """How much more went into the last fifth of the steps looked at than into the first, by their medians."""
    if len(sizes) < _FEWEST:
        return None
    part = len(sizes) // 5
    return median(sizes[-part:]) / median(sizes[:part])


def stalls_of(steps: Sequence[Step]) -> tuple[float | None, int | None]:
    """The share of time in steps whose `other` stands out, and how many steps lie from one to the next.

    All that those steps and the ones after them take beyond others, waits apart: after a checkpoint of 100 MB
    the caches are cold, and 16 ms of forward and backward came on top of the 130 that it was written in.
    """
    if len(steps) < _FEWEST:
        return None, None
    found = _stalled(steps)
    if len(found) < _LEAST_STALLS:
        return (0.0, None) if not found else (None, None)
    return _lost_to(steps, found), round(median(b - a for a, b in pairwise(found)))


def rare_stalls_of(steps: Sequence[Step]) -> float | None:
    """The same share where they are too few to come again, as one long save in all that was seen; else 0.

    None of a few steps: what stands out among those is not known.
    """
    if len(steps) < _FEWEST:
        return None
    found = _stalled(steps)
    return _lost_to(steps, found) if 0 < len(found) < _LEAST_STALLS else 0.0


def _stalled(steps: Sequence[Step]) -> list[int]:
    """Which steps stand out by what the loop itself does."""
    others = [step.other for step in steps]
    typical = median(others)
    whole = median(step.seconds for step in steps)
    return [at for at, other in enumerate(others) if other - typical > 0.5 * whole]


def _lost_to(steps: Sequence[Step], found: Sequence[int]) -> float:
    """The share of time that those steps and the ones after them take beyond others, waits apart."""
    busy = [step.seconds - (step.wait or 0.0) for step in steps]
    touched = {at for stall in found for at in (stall, stall + 1) if at < len(steps)}
    return sum(busy[at] - median(busy) for at in touched) / sum(step.seconds for step in steps)
