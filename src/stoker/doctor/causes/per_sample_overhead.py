"""Tiny samples fetched one by one: what each costs is the calls around it."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import IN_MEMORY
from stoker.watch.words import percent

ID = "per-sample-overhead"
CURES = (
    IN_MEMORY,
    Cure(change="batch_index", text="take a batch by one index: `__getitems__` in the dataset"),
)
# Seconds a sample, below which there is little in it but calls.
_TINY = 120e-6


def judge(run: Evidence) -> Judgement:
    """By the time for each sample, one call each."""
    items = run.calls("item")
    if run.make is None or not run.samples or items is None:
        return None
    each = run.make / (run.samples / run.batches)
    if items < 0.8 or each > _TINY:
        return RuledOut(by=f"{items:.2g} calls a sample, {each * 1e6:,.0f} us for each")
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    return Found(
        share=run.lost,
        frees={"making": 1.0},
        certainty=0.92,
        evidence=(f"samples are fetched one by one, {each * 1e6:,.0f} us for each, collating included",),
    )
