"""Whether batches in parts make the same updates: weights after the first ones, beside those of whole ones.

By entries of the parameters, and against how far an update moves them: after three updates a wrong one has
changed the weights themselves by less than rounding does. Most entries count and not all: a gradient that is
zero but for rounding (the bias of an attention's keys) becomes a full step of either sign with Adam. Pure.
"""

from collections.abc import Sequence
from math import inf, isfinite
from statistics import fmean, quantiles

# Of an update: what rounding makes, in half precision too. Float32 loops on a CPU agree to 0.00001.
_TOLERANCE = 0.01
_ROUNDING = 2.0**-20  # eight units in the last place of a float32
# A loss put together from its parts, beside the whole batch's: a sum over samples has at most half.
_LEAST, _MOST = 0.75, 1.33

# Of an update: entries of the parameters before and after it.
Update = tuple[Sequence[float], Sequence[float]]


def distance(one: Sequence[Update], other: Sequence[Update]) -> float:
    """How far weights are apart after any of the updates, in updates, for 19 of 20 entries.

    Infinitely far where one of them is no finite number, or where they are not of the same parameters.
    """
    worst = 0.0
    for (_, after), (before, whole) in zip(one, other, strict=False):
        if not len(after) == len(before) == len(whole):
            return inf
        if not all(isfinite(entry) for of_one in (after, before, whole) for entry in of_one):
            return inf
        if not whole:
            continue
        moved = fmean((b - a) ** 2 for a, b in zip(before, whole, strict=True)) ** 0.5
        off = [max(0.0, abs(a - b) - _ROUNDING * abs(b)) for a, b in zip(after, whole, strict=True)]
        far = quantiles(off, n=20)[-1] if len(off) > 1 else off[0]
        if far:
            worst = max(worst, far / moved if moved else inf)
    return worst


def agree(off: float, by_itself: float) -> bool:
    """Whether weights so far apart are the same, where two runs of the script itself are so far apart."""
    return off <= (max(_TOLERANCE, 2 * by_itself) if isfinite(by_itself) else _TOLERANCE)


def differ_in_number(one: Sequence[Update], other: Sequence[Update]) -> int:
    """The first update, counted from 1, that is of other parameters; 0 where none is."""
    for at, (a, b) in enumerate(zip(one, other, strict=False), 1):
        if len({len(entries) for entries in (*a, *b)}) > 1:
            return at
    return 0


def is_mean(together: float, whole: float) -> bool:
    """Whether a loss is a mean over samples, by that of a batch in parts and that of it whole."""
    return whole == 0 or _LEAST <= together / whole <= _MOST
