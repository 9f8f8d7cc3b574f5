"""The process and its workers are kept to a few of the cores."""

from stoker.doctor.evidence import FULL, Evidence
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
    """By the masks of the process and of its workers, and by whether something waits for those cores."""
    own, cores = run.process.get("affinity"), run.host.get("cpus")
    if own is None or cores is None:
        return None
    workers = run.threads.worker_cores if run.threads is not None else None
    allowed = own if workers is None else min(own, workers)
    if allowed >= cores:
        return RuledOut(by=f"all {cores} cores may be used")
    if run.host.get("cpuset_cores") is not None and allowed >= run.host["cpuset_cores"]:
        return RuledOut(by=f"all {allowed} cores that this container has may be used")
    full, queued = _is_full(run, allowed, workers=allowed < own), run.making.get("queued")
    told: tuple[str, ...] = ()
    if run.cores is not None:
        told = (f"{run.cores:.2g} of {allowed} cores are used",)
    part = run.part_of_making("queued")
    waits = () if queued is None else (f"{percent(part)} of making a batch is waiting for a core",)
    if run.lost < ALARM and not run.saturates(allowed):
        if run.cores is None or not run.waits_known:
            return None
        return RuledOut(by=f"{told[0]}, and the loop waits for nothing")
    if not full and part < ALARM:
        # Cores that stand idle are not what a loop waits for, few as they are.
        if full is None or queued is None:
            return None
        return RuledOut(by=", and ".join((*told, *waits)))
    return Found(
        share=None,
        certainty=0.95,
        evidence=(
            f"{allowed} of {cores} cores may be used" + (" by a worker" if allowed < own else ""),
            *told,
            *waits,
        ),
    )


def _is_full(run: Evidence, allowed: int, *, workers: bool) -> bool | None:
    """Whether the cores that may be used are; `workers`: by these, whose mask it is. None: not measured."""
    cpu = run.making.get("cpu")
    making = None if cpu is None else cpu * run.batches / run.step
    used = making if workers else max((one for one in (making, run.cores) if one is not None), default=None)
    return None if used is None else used >= FULL * allowed
