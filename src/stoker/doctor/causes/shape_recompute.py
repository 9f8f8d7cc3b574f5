"""torch.compile compiles again and again, for every new shape."""

from stoker.doctor.device_evidence import AUTOTUNE
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "shape-recompute"
CURES = (
    Cure(change="pad", text="pad or crop to a few sizes", kind="optimization", risk="padding costs time too"),
    Cure(
        change="dynamic",
        text="torch.compile(..., dynamic=True), or torch._dynamo.mark_dynamic",
        kind="numerics",
    ),
)


def judge(run: Evidence) -> Judgement:
    """By what was compiled while the loop trained, after its first steps, and how long that took."""
    tuned = AUTOTUNE not in run.missing  # else half of the cause was not looked at
    if run.recompiled is None:
        return RuledOut(by="nothing was compiled") if run.process and tuned else None
    graphs, share = run.recompiled
    if graphs < 2 or share < ALARM:
        if not tuned:
            return None
        return RuledOut(
            by=f"{graphs} graphs were compiled after the first steps, {percent(share)} of the time"
        )
    return Found(
        share=share,
        certainty=0.95,
        evidence=(f"{graphs} graphs were compiled after the first steps, {percent(share)} of the time",),
    )
