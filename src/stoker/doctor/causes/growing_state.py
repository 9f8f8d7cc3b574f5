"""Steps take longer and longer: something is kept from step to step."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration

ID = "growing-state"
CURES = (
    Cure(change="detach", text="keep numbers, not tensors: loss.item() or detach() in what is summed up"),
)
_WORTH = 1.25
# Of the last steps, what later ones take at the least: what is kept does not go. On cores that others used, a
# healthy loop took 1.32 times as long at last, and then 0.92 of that with held batches.
_STAYS = 0.95
# How sure it is; and where nobody saw what goes into the model, which may be longer samples as well.
_SURE, _WORK_UNSEEN = 0.8, 0.4


def judge(run: Evidence) -> Judgement:
    """By the last steps beside the first, without their waits, and by how much more goes into them."""
    if run.growth is None:
        return None
    if run.growth < _WORTH:
        return RuledOut(by=f"the last steps take {run.growth:.2f} of the first, waits apart")
    last = run.growth * (1 - (run.grown or 0.0)) * run.step * (1 - (run.shares.get("wait") or 0.0))
    if run.compute is not None and run.compute < _STAYS * last:
        return RuledOut(
            by=f"the last steps took {duration(last)}, later ones with held batches {duration(run.compute)}"
        )
    told = [f"the last of {run.steps} steps take {run.growth:.2f} times the first, waits apart"]
    if run.more_work is not None:
        told.append(f"the model is given {run.more_work:.2f} times as much")
        if run.growth < _WORTH * run.more_work:
            return RuledOut(by=", and ".join(told))
        # Attention takes longer by the square of what goes in; so nothing is said of what lies between.
        if run.growth < _WORTH * run.more_work**2:
            return None
        return Found(share=run.grown or 0.0, certainty=_SURE, evidence=tuple(told), computes=True)
    told.append(
        "what goes into the model was not measured: more in each step looks the same; to measure next: the "
        "sizes of what the model is called with, at first and at last"
    )
    return Found(share=run.grown or 0.0, certainty=_WORK_UNSEEN, evidence=tuple(told), computes=True)
