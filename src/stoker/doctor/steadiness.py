"""How much steps vary, and which of them no loader that was starting up had a part in. Pure."""

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, median, stdev

from stoker.watch import Step

# Parts of the steps by which their spread is told, and Student's factor for the mean of so many.
_STRETCHES = 8
_NINE_IN_TEN = 1.895
# Steps that a mean rests on.
_LEAST = 4


def spread_of(seconds: Sequence[float]) -> float | None:
    """By what share the mean of the steps may be off, nine times in ten; None of a few of them."""
    off = doubt_of(seconds)
    return None if off is None else off / fmean(seconds)


def doubt_of(seconds: Sequence[float]) -> float | None:
    """By how many seconds that may be, by how stretches of the steps differ."""
    means = _means(seconds)
    return None if means is None else _NINE_IN_TEN * stdev(means) / sqrt(len(means))


def by_stretches(seconds: Sequence[float]) -> float:
    """A step's time as rates are told, by the median over stretches: one that was disturbed is none of it.

    Of a few steps their mean.
    """
    means = _means(seconds)
    return fmean(seconds) if means is None else median(means)


def _means(seconds: Sequence[float]) -> list[float] | None:
    """Of stretches of the steps, one after the other; None of a few of them."""
    part = len(seconds) // _STRETCHES
    if part < 2:
        return None
    return [fmean(seconds[at : at + part]) for at in range(0, part * _STRETCHES, part)]


def settled_step(steps: Iterable[Step], workers: int) -> float | None:
    """What a step takes once all workers are up; None where too few were seen."""
    kept = since_startup(steps, workers)
    return fmean(step.seconds for step in kept) if len(kept) >= _LEAST else None


def since_startup(steps: Iterable[Step], workers: int) -> list[Step]:
    """Steps beside which no loader was starting up.

    It does until the last worker has given its first batch: the others wait for it, and for the cores.
    """
    kept, since = [], workers
    for step in steps:
        since = 0 if step.startup else since + 1
        if since > workers:
            kept.append(step)
    return kept
