"""Reads wait for the disk, the network or a mount."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.passes import Pass
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import IN_MEMORY, ON_DISK
from stoker.doctor.objects import object_bytes
from stoker.doctor.remains import saved_by
from stoker.doctor.unseen import LEAST_READING, MOST_BUSY, waits_unseen
from stoker.watch.words import duration, percent

ID = "storage-latency"
_STAGE = Cure(change="stage", text="stoker stage SRC DST: a local copy of a remote set")
_OBJECTS = Cure(
    change="batch_requests",
    text="ask for a whole batch at once in `__getitems__`; of pictures in a bucket, stoker.ImageSource does",
)
CURES = (_STAGE, ON_DISK, IN_MEMORY, _OBJECTS)

# Cold over warm: less is no difference.
_AS_FAST = 1.2
# Of the time that a batch took at first: less when read again, and it is in memory by then.
_FASTER = 0.5
# How sure it is where nothing shows where the bytes come from; and where more workers need at most so much of
# the loader's time, so that whatever is waited for is not at its limit. Of patches that come after 18 ms, two
# workers needed 0.69 on cores that others used as well: 0.27 of the step by workers, 0.89 by waiting.
_UNSEEN, _UNSEEN_AND_GROWS = 0.3, 0.2
_GROWS = 0.75
# Bytes a batch; less is talk, not data.
_SOME = 1024


def judge(run: Evidence) -> Judgement:
    """By what came from a disk or a socket, by time off the CPU, and by the same samples read again."""
    if run.make is None or run.busy is None:
        return None
    read = run.part_of_making("read")
    if read < LEAST_READING or run.busy > MOST_BUSY:
        return RuledOut(
            by=f"of making a batch {percent(read)} is reading, and the CPU is busy {percent(run.busy)} of it"
        )
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    ruled_out = _from_memory(run)
    if ruled_out is not None:
        return ruled_out
    asked, disk, faults = run.making.get("bytes"), run.making.get("disk"), run.making.get("faults")
    evidence = [f"{percent(read)} of making a batch is reading, with the CPU busy {percent(run.busy)} of it"]
    grows = (
        run.loader is not None and run.loader_with is not None and run.loader_with[1] <= _GROWS * run.loader
    )
    certainty = _UNSEEN_AND_GROWS if grows else _UNSEEN
    received = None if run.again is None else run.again.received
    if asked and disk is not None and disk > 0.5 * asked:
        evidence.append(f"{percent(disk / asked)} of the bytes read came from the disk")
        certainty = 0.85
        if run.again is not None and (run.again.disk or 0.0) > 0.5 * disk:
            evidence.append("read again a moment later, the same samples come from the disk again")
    elif faults and faults >= 1:
        evidence.append(f"{faults:.3g} pages a batch had to come from the disk under a memory map")
        certainty = 0.85
    elif (size := object_bytes(run)) is not None:
        evidence.append(f"each sample is an object of {size:,.0f} bytes that comes by HTTP, one at a time")
        certainty = 0.9
    elif run.calls("recv"):
        evidence.append(f"{run.calls('recv'):.3g} answers from a socket for each sample")
        certainty = 0.8
    elif received and received > _SOME:
        evidence.append(f"{received:,.0f} bytes a batch came over the network when it was read again")
        certainty = 0.9
    if run.again is not None and waits_unseen(run) and run.again.seconds < _FASTER * run.make:
        evidence.append(
            f"the same samples read again came in {duration(run.again.seconds)}: by then they were kept near"
        )
    if run.stub is not None and run.stub.reading is not None and certainty > _UNSEEN:
        saved = run.stub.reading / run.stub.nothing
        evidence.append(f"with reads answered from memory a batch takes {percent(saved)} less")
        certainty = min(0.93, certainty + 0.05) if saved > 0.5 else certainty - 0.3
    cures = CURES[:-1] if object_bytes(run) is None else CURES
    frees = {"read": 1.0}
    return Found(
        share=saved_by(run, frees),
        frees=frees,
        weighs=run.lost,
        certainty=certainty,
        evidence=tuple(evidence),
        cures=cures,
    )


def _from_memory(run: Evidence) -> RuledOut | None:
    """Whether the same samples, read again or read cold, show that storage is not what takes the time."""
    again = run.again
    if again is None or run.reread is None or run.make is None:
        return None
    warm, cold = run.reread.warm, run.reread.cold
    if warm is None:
        return None
    # A warm pass off the CPU waits for something that no page cache holds.
    if cold is not None and _was_cold(cold) and warm.busy > 0.5 and cold.seconds < _AS_FAST * warm.seconds:
        return RuledOut(
            by=f"a batch takes {duration(warm.seconds)} from memory, {duration(cold.seconds)} from a disk"
        )
    first = run.make - (run.making.get("queued") or 0.0)
    if again.seconds < _FASTER * first and (again.received or 0.0) < _SOME and not waits_unseen(run):
        return RuledOut(
            by=f"the same samples read again came from memory, in {duration(again.seconds)} where a batch "
            f"took {duration(first)}"
        )
    return None


def _was_cold(made: Pass) -> bool:
    """Whether most of it came from a disk, or from one under a memory map."""
    return (made.disk or 0.0) > 0.5 * (made.asked or 0.0) or (made.faults or 0.0) >= 1
