"""The process may use fewer cores than it sees, and is stopped whenever it has used them up."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "cpu-quota"
CURES = (
    Cure(change="num_workers", text="workers and threads by the quota, not by the cores; or a larger quota"),
)


def judge(run: Evidence) -> Judgement:
    """By the periods in which the quota was used up."""
    if not run.host:
        return None
    quota = run.host.get("quota_cores")
    if quota is None:
        return RuledOut(by="there is no CPU quota")
    if run.throttled is None:
        return None
    if run.throttled < ALARM:
        return RuledOut(
            by=f"the quota of {quota:g} cores was used up in {percent(run.throttled)} of its periods"
        )
    if run.lost < ALARM and not run.saturates(quota):
        if run.cores is None or not run.waits_known:
            return None
        return RuledOut(by=f"{run.cores:.2g} of {quota:g} cores are used, and the loop waits for nothing")
    full = run.cores is None or run.saturates(quota)
    return Found(
        share=None,
        certainty=0.97,
        # It is stopped for a part of such a period, and of no other: one that is not used up in the mean.
        weighs=None if full else run.throttled,
        evidence=(
            f"a quota of {quota:g} cores on a machine with {run.host.get('cpus')}, "
            f"used up in {percent(run.throttled)} of its periods",
        ),
    )
