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
    compiling = _compiling(run)
    share = max(0.0, run.stalls - compiling)
    if share < ALARM:
        return RuledOut(
            by=f"{percent(run.stalls)} of the time is in steps that stand out, of which {percent(compiling)} "
            "is compiling"
        )
    if run.workers and run.loader is not None and run.lost >= ALARM:
        # The loop waits for batches as well, and they are made during a stall: without stalls it would wait
        # for more of them. Of saves every 5 steps, 0.52 of the time, leaving them out saved 0.2.
        share = max(0.0, min(share, 1 - run.loader / run.step))
    if share < ALARM:
        return RuledOut(
            by=f"{percent(run.stalls)} of the time is in steps that the loop itself holds up, in which "
            f"batches are made that it would wait for: without those steps {percent(share)} is saved"
        )
    every = f", every {run.stall_every} steps" if run.stall_every else ""
    return Found(
        share=share,
        certainty=0.9,
        evidence=(f"{percent(run.stalls)} of the time is in steps that the loop itself holds up{every}",),
    )


def _compiling(run: Evidence) -> float:
    """The share of the time that is compiling in what counts as the loop's own, and not as the model's."""
    if run.recompiled is None:
        return 0.0
    share = run.recompiled[1]
    computing = sum(run.shares.get(phase) or 0.0 for phase in ("forward", "backward", "update"))
    return share if share > computing else 0.0
