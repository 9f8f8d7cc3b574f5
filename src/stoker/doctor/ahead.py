"""Batches made ahead of the loop, by the times that they really took: what a longer queue saves. Pure.

torch's DataLoader keeps `prefetch_factor` batches of each worker under way, gives each worker its own in turn,
and hands them out in order. A batch that takes long is then waited for unless enough others lay ready: by the
means alone, model and loader would both be fast enough.
"""

from collections.abc import Sequence

# Batches under way that are worth a try, of each worker; and what more of them must save to be worth it.
LADDER = (4, 8, 16)
_WORTH = 0.02
# Batches by whose times anything can be told.
_LEAST = 32


def step_seconds(made: Sequence[float], compute: float, *, workers: int, prefetch: int) -> float | None:
    """Seconds from one batch to the next, for a loop that takes `compute` with each; None of a few batches.

    The times are gone through again and again, and the last of these rounds counts: the queue that was full
    at first is none of it.
    """
    if len(made) < _LEAST or workers < 1 or prefetch < 1:
        return None
    under_way = workers * prefetch
    rounds = 2 + under_way // len(made)
    ready: list[float] = []
    handed: list[float] = []
    for number in range(rounds * len(made)):
        given = handed[number - under_way] if number >= under_way else 0.0
        idle_since = ready[number - workers] if number >= workers else 0.0
        ready.append(max(given, idle_since) + made[number % len(made)])
        handed.append(max(ready[-1], handed[-1] + compute) if handed else ready[-1])
    return (handed[-1] - handed[-1 - len(made)]) / len(made)


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
