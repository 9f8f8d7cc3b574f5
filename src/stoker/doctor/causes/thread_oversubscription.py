"""More threads compute than there are cores: they take the cores from each other, and wait for each other."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "thread-oversubscription"
CURES = (
    Cure(
        change="threads",
        text="torch.set_num_threads(cores), or OMP_NUM_THREADS, in the training process",
        kind="numerics",
        risk="sums over other parts round otherwise",
    ),
    Cure(
        change="worker_threads",
        text="torch.set_num_threads(1) in worker_init_fn (cv2.setNumThreads(0) where OpenCV is used)",
        kind="numerics",
        risk="sums over other parts round otherwise",
    ),
)


def judge(run: Evidence) -> Judgement:
    """By threads beside cores, and by a run with one thread in each process."""
    threads, cores = run.threads, run.own_cores
    if threads is None or cores is None:
        return None
    workers = f", {threads.worker} in each of {threads.workers} workers" if threads.worker else ""
    told = f"{threads.main} threads in the training process{workers}, on {cores:g} cores"
    if not run.crowded:
        return RuledOut(by=told)
    if run.one_thread is None or run.freed is None:
        return None
    tried = f"with one thread each a step takes {duration(run.one_thread)} in place of {duration(run.step)}"
    if run.freed < ALARM:
        return RuledOut(by=f"{told}; {tried}")
    beside = f"{percent(threads.system)} of CPU time is the kernel's"
    if threads.switches is not None:
        beside += f", and it takes a core away {threads.switches:,.0f} times a second"
    return Found(share=run.freed, certainty=0.95, evidence=(told, tried, beside))
