"""Taking turns, and what the turns come to: pure functions over what was measured in order.

A machine drifts: it warms up, another user comes and goes. Whatever is compared is therefore
alternated, each measurement is held against the base measured before it and after it, and only these
differences are put together.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median


def rounds(base: str, others: Sequence[str]) -> Iterator[str]:
    """Who is next, without end: the base, then each of the others, then the base again."""
    while True:
        yield base
        yield from others


def differences(turns: Sequence[tuple[str, float]], base: str, other: str) -> list[float]:
    """How far each of the other's turns lies above the base, drawn as a line between its neighbours.

    A turn with the base on one side only is held against that one; with none, it is left out.
    """
    bases = [(at, value) for at, (kind, value) in enumerate(turns) if kind == base]
    found = []
    for at, (kind, value) in enumerate(turns):
        if kind != other:
            continue
        before = [turn for turn in bases if turn[0] < at][-1:]
        after = [turn for turn in bases if turn[0] > at][:1]
        if before and after:
            share = (at - before[0][0]) / (after[0][0] - before[0][0])
            found.append(value - (before[0][1] + share * (after[0][1] - before[0][1])))
        elif before or after:
            found.append(value - (before or after)[0][1])
    return found


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median, and between what it lies; `low` and `high` are None where too little was measured."""

    middle: float
    low: float | None = None
    high: float | None = None


# With fewer repeats a resampled median is one of two values, and an interval made of them a pretence.
_ENOUGH = 3


def interval(values: Sequence[float], *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """The median of the repeats, with its bootstrap interval."""
    if not values:
        raise ValueError("no repeats: an interval needs at least one value")
    if len(values) < _ENOUGH:
        return Interval(middle=median(values))
    chance = random.Random(seed)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(draws))
    edge = (1 - level) / 2
    return Interval(
        middle=median(values),
        low=medians[int(edge * draws)],
        high=medians[min(draws - 1, int((1 - edge) * draws))],
    )


def as_figures(key: str, found: Interval) -> dict[str, float]:
    """The interval as figures: `key`, `key_low`, `key_high`."""
    figures = {key: found.middle}
    if found.low is not None and found.high is not None:
        figures |= {f"{key}_low": found.low, f"{key}_high": found.high}
    return figures
