"""More workers would make batches faster, and cores and storage would let them."""

from math import isfinite

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "too-few-workers"
CURES = (
    Cure(
        change="num_workers",
        text="raise num_workers while the loader's rate grows",
        risk="memory and /dev/shm for each",
    ),
)
# Of twice the workers; less than this and the limit lies elsewhere.
_WORTH = 0.75


def judge(run: Evidence) -> Judgement:
    """By a drain with more workers beside the one with those that there are."""
    if run.drawn is None or run.drawn.workers is None:
        return None
    if not run.workers:
        return RuledOut(by="there are no workers to add to")
    if not isfinite(run.step):
        return None  # it died before a step
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    if run.loader is None or run.loader_with is None:
        return None
    workers, with_more = run.loader_with
    told = (
        f"{run.workers} workers take {duration(run.loader)} for a step's batches, "
        f"{workers} take {duration(with_more)}"
    )
    if with_more > _WORTH * run.loader:
        return RuledOut(by=told)
    if run.compute is not None and run.loader <= run.compute:
        return RuledOut(by=f"{told}, and the model alone {duration(run.compute)}: they keep up with it")
    after = max(with_more, run.compute or 0.0)
    return Found(
        share=max(0.0, min(run.lost, 1 - after / run.step)),
        takes=with_more / run.loader,
        certainty=0.85,
        evidence=(told,),
    )
