"""Much of what the model computes is padding."""

from stoker.doctor.computing import is_forward_seen, most_of_the_model
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "padding-waste"
CURES = (
    Cure(
        change="bucket",
        text="batches of samples of about the same length (a sampler that sorts within a window)",
        kind="optimization",
        risk="batches are drawn less at random, and one of the longest needs more memory",
    ),
)
_LEAST = 0.25


def judge(run: Evidence) -> Judgement:
    """By what follows the ends of sequences in batches; the model's time goes with its tokens."""
    if run.padding is None:
        return None
    computing = (run.shares.get("forward") or 0.0) + (run.shares.get("backward") or 0.0)
    unseen = 0.0 if is_forward_seen(run) else most_of_the_model(run)
    if run.padding >= _LEAST and run.padding * computing < ALARM <= run.padding * unseen:
        return None  # how much of the step goes with the tokens was not measured
    if run.padding < _LEAST or run.padding * computing < ALARM:
        return RuledOut(by=f"{percent(run.padding)} of the tokens in a batch are padding")
    return Found(
        share=run.padding * computing,
        certainty=0.75,
        evidence=(
            f"{percent(run.padding)} of the tokens in a batch are padding",
            f"forward and backward are {percent(computing)} of the step",
        ),
        computes=True,
    )
