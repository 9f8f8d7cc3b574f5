"""Batches are made while nobody computes: a step takes the loader's time and then the model's."""

from statistics import median

from stoker.doctor.ahead import long_enough
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "no-overlap"
_WORKERS = Cure(change="num_workers", text="num_workers=1 or more: a batch is made while the last one trains")
_ONE_WORKER = Cure(
    change="num_workers",
    text="num_workers=1: a batch is made while the last one trains; each of several workers would read the "
    "whole stream, unless it shares itself out",
)
_LOADER = Cure(
    change="loader",
    text="make them in a worker: an IterableDataset around the generator, DataLoader(..., batch_size=None, "
    "num_workers=1)",
)
_AHEAD = Cure(
    change="prefetch_factor",
    text="a longer queue: prefetch_factor=4 or more, so that others lie ready while a slow batch is made",
    risk="memory and /dev/shm for each batch under way",
)
CURES = (_WORKERS, _LOADER, _AHEAD)
# By how much the step may be off what its batches' times make of it, as a share, for them to explain it.
_EXPLAINED = 0.25


def judge(run: Evidence) -> Judgement:
    """By the step beside the sum and the larger of both times; without a loader, by where the loop stands."""
    if run.drawn is None:
        return _by_generator(run)
    if run.drawn.workers is None:
        return None
    if run.workers:
        return _by_queue(run)
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    cures = (_ONE_WORKER if run.streams else _WORKERS,)
    if run.loader is None or run.compute is None:
        # Beside each other they take as long as the longer one, be it waiting or the rest of the step.
        return Found(
            share=min(run.lost, 1 - run.lost),
            overlaps=True,
            weighs=run.lost,
            certainty=0.5,
            evidence=("num_workers=0: the loop makes its own batches",),
            cures=cures,
        )
    quickest = run.loader if run.loader_with is None else min(run.loader, run.loader_with[1])
    told = (
        f"num_workers=0: a step takes {duration(run.step)}, the model alone {duration(run.compute)}, "
        f"the loader alone {duration(run.loader)}"
    )
    mostly = run.loader <= 1.5 * run.compute
    return Found(
        share=max(0.0, min(run.lost, 1 - max(quickest, run.compute) / run.step)),
        takes=quickest / run.loader if run.loader else 1.0,
        overlaps=True,
        weighs=max(0.0, min(run.lost, 1 - max(run.loader, run.compute) / run.step)) if mostly else run.lost,
        certainty=0.9 if mostly else 0.5,
        evidence=(told,),
        cures=cures,
    )


def _by_queue(run: Evidence) -> Judgement:
    """By the times of its batches: whether they are made beside the loop, but too few of them ahead."""
    beside = RuledOut(by=f"{run.workers} workers make batches beside the loop")
    if run.lost < ALARM or run.compute is None or run.drawn is None:
        return beside
    prefetch = run.drawn.prefetch or 2
    found = long_enough(run.made, run.compute / run.batches, workers=run.workers, prefetch=prefetch)
    if found is None:
        return beside
    value, now, then = (found[0], *(seconds * run.batches for seconds in found[1:]))
    saved = min(run.lost, 1 - then / now)
    if saved < ALARM or abs(now / run.step - 1) > _EXPLAINED:
        return beside
    usual, slowest = median(run.made), max(run.made)
    return Found(
        share=saved,
        certainty=0.95,
        evidence=(
            f"a batch is made in {duration(usual)} and at most in {duration(slowest)}, and "
            f"{run.workers} workers with prefetch_factor={prefetch} have too few ready for that: by these "
            f"times a step takes {duration(now)}, and {duration(then)} with prefetch_factor={value}",
        ),
        cures=(_AHEAD,),
    )


def _by_generator(run: Evidence) -> Judgement:
    made = run.generator
    if made is None:
        return None
    if made.share < ALARM:
        return RuledOut(by=f"{percent(made.share)} of the step is in generators of the script's own")
    where = f"{percent(made.share)} of the step is in the generator {made.name} ({made.place})"
    if made.runs_model:
        return RuledOut(by=f"{where}, which runs a model itself and cannot work ahead of it")
    # Beside each other they take as long as the longer one, and no less than the cores need for both.
    computing = 0.0 if run.cores is None or not run.own_cores else run.cores / run.own_cores
    return Found(
        share=max(0.0, 1 - max(made.share, 1 - made.share, computing)),
        certainty=0.8,
        evidence=(f"{where}, with no DataLoader around it: nothing is computed meanwhile",),
        cures=(_LOADER,),
    )
