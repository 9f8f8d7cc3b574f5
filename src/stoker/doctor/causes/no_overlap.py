"""Batches are made while nobody computes: a step takes the loader's time and then the model's."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "no-overlap"
CURES = (Cure(change="num_workers", text="num_workers=1 or more: a batch is made while the last one trains"),)


def judge(run: Evidence) -> Judgement:
    """By the step beside the sum and the larger of the two times."""
    if run.drawn is None or run.drawn.workers is None:
        return None
    if run.workers:
        return RuledOut(by=f"{run.workers} workers make batches beside the loop")
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    if run.loader is None or run.compute is None:
        return Found(
            share=run.lost, certainty=0.5, evidence=("num_workers=0: the loop makes its own batches",)
        )
    after = max(run.loader, run.compute)
    told = (
        f"num_workers=0: a step takes {duration(run.step)}, the model alone {duration(run.compute)}, "
        f"the loader alone {duration(run.loader)}"
    )
    mostly = run.loader <= 1.5 * run.compute
    return Found(
        share=max(0.0, min(run.lost, 1 - after / run.step)) if mostly else run.lost,
        certainty=0.9 if mostly else 0.5,
        evidence=(told,),
    )
