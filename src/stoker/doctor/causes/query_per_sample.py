"""One query or request for every sample: the trips add up, however fast the server is."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "query-per-sample"
CURES = (
    Cure(
        change="feed",
        text="stoker.SqlSource reads a whole batch, or the whole table, by one query; or `__getitems__` "
        "with WHERE id IN (...)",
    ),
)


def judge(run: Evidence) -> Judgement:
    """By the calls for each sample, and whether the time is spent in them."""
    queries, answers = run.calls("query"), run.calls("recv")
    if run.make is None or queries is None or answers is None:
        return None
    asked = max(queries, answers)
    if asked < 0.8:
        return RuledOut(by=f"{asked:.2g} queries or answers a sample")
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    if run.part_of_making("read") < 0.4:
        return RuledOut(by=f"of making a batch, {percent(run.part_of_making('read'))} is in calls")
    kind = "queries" if queries >= answers else "answers from a socket"
    return Found(
        share=run.lost,
        certainty=0.95,
        evidence=(
            f"{asked:.3g} {kind} for each sample",
            f"{percent(run.part_of_making('read'))} of making a batch is waiting for them",
        ),
    )
