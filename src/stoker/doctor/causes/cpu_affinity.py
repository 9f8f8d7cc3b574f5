"""The process and its workers are kept to a few of the cores."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "cpu-affinity"
CURES = (
    Cure(
        change="worker_affinity",
        text="os.sched_setaffinity(0, range(os.cpu_count())) in worker_init_fn, or before",
    ),
)


def judge(run: Evidence) -> Judgement:
    """By the masks of the training process and of its workers beside what the machine has."""
    own, cores = run.process.get("affinity"), run.host.get("cpus")
    if own is None or cores is None:
        return None
    workers = run.threads.worker_cores if run.threads is not None else None
    allowed = own if workers is None else min(own, workers)
    if allowed >= cores:
        return RuledOut(by=f"all {cores} cores may be used")
    if run.host.get("cpuset_cores") is not None and allowed >= run.host["cpuset_cores"]:
        return RuledOut(by=f"all {allowed} cores that this container has may be used")
    queued = run.part_of_making("queued")
    if run.lost < ALARM and not run.saturates(allowed):
        if run.cores is None or not run.waits_known:
            return None
        return RuledOut(by=f"{run.cores:.2g} of {allowed} cores are used, and the loop waits for nothing")
    return Found(
        share=None,
        certainty=0.95,
        evidence=(
            f"{allowed} of {cores} cores may be used" + (" by a worker" if allowed < own else ""),
            f"{percent(queued)} of making a batch is waiting for a core",
        ),
    )
