"""The rate of a run: by stretches of whole turns, never by steps, of which one may wait for many. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
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
    loader = max(fed, key=_fed)
    workers = loader.get("num_workers") or 0
    queue = workers * (loader.get("prefetch_factor") or 0)
    turn = max(1, workers)
    epoch = loader.get("length")
    if epoch and epoch * LEAST_STRETCHES <= made:
        turn = epoch
    return turn * ceil(max(LEAST_STEPS, 2 * queue) / turn)


def epoch_of(loaders: Sequence[Mapping[str, Any]], made: int) -> float | None:
    """Steps in an epoch of the loader that feeds, by how many were made; None where it has no length."""
    fed = [loader for loader in loaders if loader.get("fed") and loader.get("length")]
    if not fed:
        return None
    loader = max(fed, key=_fed)
    return float(loader["length"]) * made / _fed(loader)


def rates(
    ends: Sequence[float],
    samples: Sequence[int | None],
    steps: int,
    resources: Sequence[Mapping[str, Any]] = (),
    *,
    turns: Collection[int] = (),
    epoch: float | None = None,
) -> Rates:
    """Of each whole stretch of so many steps, by the moments at which steps ended.

    The first moment only begins: its step is none of a stretch. `resources` are the counters of the run.

    At some steps an epoch of so many begins: `turns`, by their places. What that costs beyond other stretches
    is shared out over the epoch: with 16 workers started anew a turn took 0.3 s of an epoch's 1.6, and a run
    of three stretches had none in it, one, or two.
    """
    counted = None not in samples[1:]
    found = []
    for end in range(steps, len(ends), steps):
        places = range(end - steps + 1, end + 1)
        found.append(
            _Stretch(
                work=sum(samples[at] or 0 for at in places) if counted else steps,
                seconds=ends[end] - ends[end - steps],
                turns=sum(at in turns for at in places),
                quiet=_is_quiet(resources, ends[end - steps], ends[end]),
            )
        )
    quiet = [one for one in found if one.quiet]
    return Rates(
        each=_each(quiet or found, steps, epoch),
        unit="sample" if counted else "step",
        stretch_steps=steps,
        size=fmean(one or 0 for one in samples[1:]) if counted and len(samples) > 1 else 1.0,
        disturbed=not quiet,
    )


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    work: float
    seconds: float
    turns: int
    quiet: bool


def _each(stretches: Sequence[_Stretch], steps: int, epoch: float | None) -> tuple[float, ...]:
    plain = [one for one in stretches if not one.turns]
    if not plain or len(plain) == len(stretches) or epoch is None or epoch <= steps:
        return tuple(one.work / one.seconds for one in stretches)
    usual = median(one.seconds for one in plain)
    turn = median((one.seconds - usual) / one.turns for one in stretches if one.turns)
    shared = max(0.0, turn) * steps / epoch
    return tuple(one.work / (one.seconds + shared) for one in plain)


def _fed(loader: Mapping[str, Any]) -> int:
    return int(loader["fed"])


def _is_quiet(resources: Sequence[Mapping[str, Any]], began: float, ended: float) -> bool:
    """Whether other processes left the machine to a stretch; counters are read once a second."""
    others = foreign_cores(resources, began - 1.0, ended + 1.0)
    return others is None or others <= FEW
