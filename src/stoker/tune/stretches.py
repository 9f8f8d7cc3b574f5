"""The rate of a run: by stretches of whole turns, never by steps, of which one may wait for many. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any, Literal

from stoker.doctor.foreign import FEW, foreign_cores

# Steps that are dropped: what is compiled, allocated and filled for the first time.
WARM_STEPS = 20
LEAST_STEPS = 50
# Stretches that a median is taken of.
LEAST_STRETCHES = 3


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Samples a second in each stretch; steps where samples were not counted.

    `size` is how many of them a step has. `disturbed`: others used the machine in all of them; where only in
    some, those are left out.
    """

    each: tuple[float, ...]
    unit: Literal["sample", "step"]
    stretch_steps: int
    size: float = 1.0
    disturbed: bool = False


def length(loaders: Sequence[Mapping[str, Any]], made: int) -> int:
    """Steps in a stretch: at least 50, and two queues full, in whole turns of the workers.

    Of whole epochs where the steps that were made hold several: an epoch's end is part of the rate.
    """
    fed = [loader for loader in loaders if loader.get("fed")]
    if not fed:
        return LEAST_STEPS
    loader = max(fed, key=lambda one: one["fed"])
    workers = loader.get("num_workers") or 0
    queue = workers * (loader.get("prefetch_factor") or 0)
    turn = max(1, workers)
    epoch = loader.get("length")
    if epoch and epoch * LEAST_STRETCHES <= made:
        turn = epoch
    return turn * ceil(max(LEAST_STEPS, 2 * queue) / turn)


def rates(
    ends: Sequence[float],
    samples: Sequence[int | None],
    steps: int,
    resources: Sequence[Mapping[str, Any]] = (),
) -> Rates:
    """Of each whole stretch of so many steps, by the moments at which steps ended.

    The first moment only begins: its step is none of a stretch. `resources` are the counters of the run.
    """
    counted = None not in samples[1:]
    all_rates, quiet = [], []
    for end in range(steps, len(ends), steps):
        work = sum(samples[at] or 0 for at in range(end - steps + 1, end + 1)) if counted else steps
        all_rates.append(work / (ends[end] - ends[end - steps]))
        if _is_quiet(resources, ends[end - steps], ends[end]):
            quiet.append(all_rates[-1])
    return Rates(
        each=tuple(quiet or all_rates),
        unit="sample" if counted else "step",
        stretch_steps=steps,
        size=fmean(one or 0 for one in samples[1:]) if counted and len(samples) > 1 else 1.0,
        disturbed=not quiet,
    )


def _is_quiet(resources: Sequence[Mapping[str, Any]], began: float, ended: float) -> bool:
    """Whether other processes left the machine to a stretch; counters are read once a second."""
    others = foreign_cores(resources, began - 1.0, ended + 1.0)
    return others is None or others <= FEW
