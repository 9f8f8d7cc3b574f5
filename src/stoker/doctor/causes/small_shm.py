"""Batches on their way from the workers need more shared memory than /dev/shm has."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.facts.words import size

ID = "small-shm"
CURES = (
    Cure(
        change="shm_size",
        text="a larger /dev/shm: docker run --shm-size=8g or --ipc=host; in a pod an emptyDir in Memory",
    ),
    Cure(change="prefetch_factor", text="fewer batches on the way: prefetch_factor=1, or fewer workers"),
    Cure(
        change="own_feed",
        text="stoker.Feed where the DataLoader stood reads in threads: no batch goes through shared memory",
        kind="optimization",
        risk="samples come in Feed's own order",
    ),
)
# Of the room, that may be asked for before a bus error is put down to something else.
_AMPLE = 0.5


def judge(run: Evidence) -> Judgement:
    """By the error that it ended of, and by the batches on their way beside the room in /dev/shm."""
    room, need = run.host.get("shm_free_bytes"), _need(run)
    told = f"{_words(run)} in {size(room)} of /dev/shm"
    ending = run.ending
    if ending is not None and ending.lacked == "shm":
        if ending.sure:
            return Found(share=None, certainty=0.99, evidence=(ending.why, told))
        if need is None or room is None:
            return Found(share=None, certainty=0.6, evidence=(ending.why, told))
        if need > _AMPLE * room:
            return Found(share=None, certainty=0.97, evidence=(ending.why, told))
        return RuledOut(by=told)
    if run.drawn is not None and run.drawn.workers == 0:
        return RuledOut(by="no workers hand batches over")
    if need is None or room is None:
        return None
    if need <= room:
        return RuledOut(by=told)
    return Found(share=None, certainty=0.6, evidence=(f"{told}: it lives while they never wait all at once",))


def _need(run: Evidence) -> int | None:
    """Bytes of tensors in all batches that may be on their way at once."""
    if run.batch_bytes is None or not run.workers:
        return None
    return run.batch_bytes * run.workers * _ahead(run)


def _ahead(run: Evidence) -> int:
    return (run.drawn.prefetch if run.drawn is not None else None) or 2  # torch's own


def _words(run: Evidence) -> str:
    if not run.workers:
        return "batches"
    return f"{run.workers} workers with {_ahead(run)} batches of {size(run.batch_bytes)} each on their way"
