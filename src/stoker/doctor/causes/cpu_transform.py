"""Decoding or augmenting takes the CPU longer than the step."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, KEEPS_UP, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import IN_MEMORY
from stoker.doctor.remains import loader_left, saved_by
from stoker.watch.words import duration, percent

ID = "cpu-transform"
CURES = (
    IN_MEMORY,
    Cure(
        change="batch_transform",
        text="leave to the dataset what is the same every time, and keep that; draw what is random by the "
        "batch (stoker.Feed's transform=, or in the loop)",
        kind="redraw",
        risk="draws differ from those of the script",
    ),
    Cure(
        change="gpu_transform",
        text="augment by the batch on the device, after the cache",
        kind="redraw",
        risk="draws differ from those of the script",
    ),
)
# With more workers, what the loader takes of what it took: below this it is not the cores that it lacks.
_GROWS = 0.75
# How sure it is then, if cores are free: workers to use them come first. Of spectra by one worker, a second
# one would save 0.38 of the step, keeping what they compute 0.82.
_SURE, _CORES_FREE = 0.8, 0.2
# If none are free the two disagree; and threads that take the cores from each other keep them just as busy.
_IN_DOUBT = 0.4

# Behind reads that are waited for: of the time at work, transforms at the least, and of theirs the CPU's.
_SOME, _COMPUTING = 0.2, 0.8
_BEHIND = 0.15


def judge(run: Evidence) -> Judgement:
    """By CPU time over wall time in the workers, what of it is the dataset's own, and whether more help."""
    if run.make is None:
        return None
    at_work = run.make - (run.making.get("queued") or 0.0)
    busy = float(run.making.get("cpu") or 0.0) / at_work if at_work else 0.0
    transform = (run.making.get("transform") or 0.0) / at_work if at_work else 0.0
    if busy < 0.6 or transform < 0.4:
        return _behind_reads(run, busy, transform) or RuledOut(
            by=f"of making a batch {percent(transform)} is transforms, and the CPU is busy {percent(busy)}"
        )
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    if run.loader is not None and run.compute is not None and run.loader < KEEPS_UP * run.compute:
        return RuledOut(
            by=f"the loader by itself takes {duration(run.loader)} for a step's batches, the model "
            f"{duration(run.compute)}"
        )
    grows = (
        run.loader is not None and run.loader_with is not None and run.loader_with[1] <= _GROWS * run.loader
    )
    full = run.own_cores is not None and run.saturates(run.own_cores)
    crowded = (run.freed or 0.0) >= ALARM
    frees = {"transform": 1.0}
    return Found(
        share=saved_by(run, frees),
        frees=frees,
        weighs=run.lost,
        certainty=_CORES_FREE if grows and not full else _IN_DOUBT if grows or crowded else _SURE,
        evidence=(
            f"a batch takes {duration(run.make)} to make, {percent(transform)} of it in the dataset's code",
            f"the CPU is busy {percent(busy)} of that",
        ),
    )


def _behind_reads(run: Evidence, busy: float, transform: float) -> Found | None:
    """Where workers wait for reads as well: what would be waited for next, were those gone."""
    if run.loader is None or run.compute is None or run.lost < ALARM:
        return None
    if transform < _SOME or busy < _COMPUTING * transform:
        return None  # they wait too, for what was not told of as a read
    if loader_left(run, {"read": 1.0}) < (1 + ALARM) * run.compute:
        return None
    frees = {"transform": 1.0}
    return Found(
        share=saved_by(run, frees),
        frees=frees,
        certainty=_BEHIND,
        behind=True,
        evidence=(
            f"without what is waited for in reads a step's batches take "
            f"{duration(loader_left(run, {'read': 1.0}))}, the model {duration(run.compute)}: of making a "
            f"batch {percent(transform)} is in the dataset's code, with the CPU busy",
        ),
    )
