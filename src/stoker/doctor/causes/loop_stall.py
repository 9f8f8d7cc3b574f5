"""Something in the loop stops it now and then: a checkpoint, a logger, a validation."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "loop-stall"
CURES = (
    Cure(change="rarer", text="save, log and validate less often"),
    Cure(
        change="async_save", text="save beside the loop (torch.distributed.checkpoint.async_save, a thread)"
    ),
)


def judge(run: Evidence) -> Judgement:
    """By steps whose time outside loader, forward, backward and update stands out."""
    if run.stalls is None:
        return None
    if run.stalls < ALARM:
        return RuledOut(by=f"steps that stand out by what the loop itself does cost {percent(run.stalls)}")
    every = f", every {run.stall_every} steps" if run.stall_every else ""
    return Found(
        share=run.stalls,
        certainty=0.9,
        evidence=(f"{percent(run.stalls)} of the time is in steps that the loop itself holds up{every}",),
    )
