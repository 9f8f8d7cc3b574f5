"""Batches made ahead of the loop, by the times that they really took: what a longer queue saves. Pure.

torch's DataLoader keeps `prefetch_factor` batches of each worker under way, and hands them out in order. One
that takes long is waited for unless enough others lie ready, though by their means model and loader would
both be fast enough.
"""

from collections.abc import Sequence
from itertools import cycle, islice

# Batches under way that are worth a try, of each worker; and what more of them must save to be worth it.
LADDER = (4, 8, 16)
_WORTH = 0.02
# Batches by whose times anything can be told, and so many are gone through: how it begins is then no matter.
_LEAST, _THROUGH = 32, 2048


def step_seconds(made: Sequence[float], compute: float, *, workers: int, prefetch: int) -> float | None:
    """Seconds from one batch to the next, for a loop that takes `compute` with each; None of a few batches.

    A worker makes its own in turn, and is given the next one when one of its is handed out.
    """
    if len(made) < _LEAST or workers < 1 or prefetch < 1:
        return None
    rounds = -(-_THROUGH // len(made))
    under_way = workers * prefetch
    ready: list[float] = []
    handed: list[float] = []
    for number, seconds in enumerate(islice(cycle(made), rounds * len(made))):
        given = handed[number - under_way] if number >= under_way else 0.0
        idle_since = ready[number - workers] if number >= workers else 0.0
        ready.append(max(given, idle_since) + seconds)
        handed.append(max(ready[-1], handed[-1] + compute) if handed else ready[-1])
    return max(handed[-1] / len(handed), compute)


def long_enough(
    made: Sequence[float], compute: float, *, workers: int, prefetch: int
) -> tuple[int, float, float] | None:
    """The shortest queue that saves nearly all that a longer one does: (prefetch, seconds now, seconds then).

    None where too little is known, or none is longer.
    """
    now = step_seconds(made, compute, workers=workers, prefetch=prefetch)
    longer = {
        value: step_seconds(made, compute, workers=workers, prefetch=value)
        for value in LADDER
        if value > prefetch
    }
    known = {value: seconds for value, seconds in longer.items() if seconds is not None}
    if now is None or not known:
        return None
    least = min(known.values())
    value = min(value for value, seconds in known.items() if seconds <= least * (1 + _WORTH))
    return value, now, known[value]
