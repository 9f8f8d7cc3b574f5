"""One query or request for every sample: the trips add up, however fast the server is."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import IN_MEMORY, ON_DISK
from stoker.doctor.objects import object_bytes
from stoker.doctor.remains import saved_by
from stoker.watch.words import percent

ID = "query-per-sample"
_SQL = Cure(
    change="batch_read",
    text="one query for a whole batch: `__getitems__` with WHERE id IN (...), as stoker.SqlSource does",
)
_BULK = Cure(
    change="batch_read",
    text="ask for a whole batch at once in `__getitems__`, where the service can answer so",
)
CURES = (_SQL, _BULK, IN_MEMORY, ON_DISK)


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
    in_sql = queries >= 0.8
    if not in_sql and (size := object_bytes(run)) is not None:
        return RuledOut(by=f"no queries: each sample is an object of {size:,.0f} bytes that comes by HTTP")
    frees = {"read": 1.0}
    return Found(
        share=saved_by(run, frees),
        frees=frees,
        weighs=run.lost,
        certainty=0.95,
        evidence=(
            f"{queries:.3g} queries for each sample"
            if in_sql
            else f"{answers:.3g} answers from a socket for each sample",
            f"{percent(run.part_of_making('read'))} of making a batch is waiting for them",
        ),
        cures=_cures(run, in_sql),
    )


def _cures(run: Evidence, in_sql: bool) -> tuple[Cure, ...]:
    """SQL is no help to what was asked by HTTP; of another protocol it is not known."""
    if in_sql:
        return (_SQL, IN_MEMORY, ON_DISK)
    return CURES[1:] if (run.calls("http") or 0.0) >= 0.8 else CURES
