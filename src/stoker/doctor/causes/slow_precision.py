"""The model computes in a precision that the hardware is slow at."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "slow-precision"
CURES = (
    Cure(change="dtype", text="float32 parameters and data, unless the maths needs more", kind="numerics"),
)


def judge(run: Evidence) -> Judgement:
    """By the types of the parameters; on a GPU more is to be measured before it is ruled out."""
    kinds = run.process.get("parameters") or {}
    total = sum(kinds.values())
    if not total:
        return None
    double = kinds.get("float64", 0) / total
    if double < 0.5:
        return RuledOut(by=f"{percent(double)} of the parameters are float64")
    return Found(
        share=None,
        certainty=0.9 * (1 - run.lost),  # of no matter while the loop waits for something else
        evidence=(f"{percent(double)} of the parameters are float64",),
    )
