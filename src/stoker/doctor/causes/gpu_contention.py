"""Another process holds the card's memory, or its time."""

from stoker.doctor.device import Others
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.facts.words import size
from stoker.watch.words import percent

ID = "gpu-contention"
CURES = (
    Cure(
        change="end_holder",
        text="where it is idle: shut that kernel or process down, with its owner's consent (`stoker check`)",
        risk="it may be a colleague's live work",
    ),
    Cure(change="other_card", text="where it works: another card (CUDA_VISIBLE_DEVICES), or another time"),
)
# Of the card's time before the script started.
_BUSY = 0.3


def judge(run: Evidence) -> Judgement:
    """By the card as it was before the script started: all of that is others'."""
    if run.on_gpu is False and run.overflow is None:
        return RuledOut(by="nothing is computed on a GPU")
    others = run.others
    if others is None or others.bytes is None:
        return None
    held = f"others held {size(others.bytes)} of {size(others.total)} before the script started"
    if others.nobody:
        held = f"nobody was on the card of {size(others.total)} before the script started"
    if run.overflow is not None and run.overflow.by_others(others):
        own = size(run.overflow.own)
        return Found(
            share=None,
            certainty=0.97,
            evidence=(
                f"{held}, and the script failed for want of memory with {own} of its own",
                *_who(others),
            ),
            cures=CURES if (others.busy or 0.0) < _BUSY else CURES[1:],
        )
    if others.busy is None:
        return None
    if others.busy < _BUSY:
        return RuledOut(by=f"{held}, and the card was busy {percent(others.busy)} of the time")
    return Found(
        share=None,
        certainty=0.95 * (1 - run.lost),  # of no matter while the loop waits for something else
        evidence=(f"the card was busy {percent(others.busy)} of the time before the script started",
                  held, *_who(others)),
        cures=CURES[1:],
    )  # fmt: skip


def _who(others: Others) -> tuple[str, ...]:
    if others.holders is None:
        return (f"whose it is cannot be told: {others.reason}",)
    return others.holders
