"""Batches are ready in the workers; getting them into the process that trains is what takes long."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, KEEPS_UP, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import IN_MEMORY
from stoker.watch.words import duration, percent

ID = "handoff"
CURES = (
    Cure(change="collate", text="fewer and larger tensors in a batch: stack in the worker, not one by one"),
    IN_MEMORY,
)

# Of the workers' time: they wait for the hand-over then, and not for the samples.
_MOSTLY_IDLE = 0.5
# What handing over takes on a core, of what making a batch does: below it the hand-over waits for a worker's
# interpreter, which is at work on the next batch. On 2 cores 0.8 to 48 where batches are of many tensors,
# 0.04 to 0.11 where they are of two and made in Python, one by one or by PIL.
_OWN = 0.3


def judge(run: Evidence) -> Judgement:
    """By pickling and pinning, all told and on a core, beside making a batch; and by how idle workers are."""
    if run.drawn is None or run.drawn.workers is None:
        return None
    if not run.workers:
        return RuledOut(by="no workers hand batches over")
    if run.make is None or run.making.get("handoff") is None:
        return None
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    batch = (run.loader or run.step) / run.batches
    handed = float(run.making["handoff"]) + float(run.making.get("pin") or 0.0)
    at_work = run.make - (run.making.get("queued") or 0.0)  # they wait for cores that the hand-over takes
    idle = 1 - min(1.0, at_work / (run.workers * batch))
    told = (
        f"handing a batch over takes {duration(handed)} of the {duration(batch)} between batches; "
        f"workers are idle {percent(idle)} of the time"
    )
    own, making = run.making.get("handoff_cpu"), float(run.making.get("cpu") or 0.0)
    if own is not None and own + float(run.making.get("pin") or 0.0) < _OWN * making:
        return RuledOut(
            by=f"handing a batch over takes {duration(own)} on a core, and making one {duration(making)}: of "
            f"the {duration(handed)} that it lasts, the rest waits for workers at work on the next"
        )
    longer = handed >= at_work
    if handed < 0.3 * batch or (idle < 0.3 and not longer):
        return RuledOut(by=told)
    share = run.lost
    if run.compute is not None and run.loader is not None and run.loader < KEEPS_UP * run.compute:
        # The loader keeps up, so the loop waits for what it does itself of handing over, and no longer.
        share = min(share, handed * run.batches / run.step)
    # A worker that makes its next batch is slow to hand the last one over: 4.8 ms for two tensors of rows
    # fetched one by one in 7.1, where 40 tensors made in 11 ms take 18.
    certainty = 0.93 if longer or idle >= _MOSTLY_IDLE else 0.85
    return Found(share=share, frees={"handoff": 1.0}, certainty=certainty, evidence=(told,))
