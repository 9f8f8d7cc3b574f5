"""Whole chunks, blocks or row groups are read for one sample of them, and again for the next."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.passes import Pass
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import BLOCK_ORDER, IN_MEMORY
from stoker.doctor.remains import saved_by
from stoker.watch.words import percent

ID = "read-amplification"
CURES = (
    Cure(change="rechunk", text="write the set with chunks the size of what is drawn"),
    IN_MEMORY,
    BLOCK_ORDER,
)
# How often an epoch must read every byte of the files; twice is an overlap, as of today and tomorrow.
_OFTEN = 4.0
# Bytes for each second of CPU time: whoever unpacks is faster than this, also by LZMA.
_UNPACKED = 5e6
# Bytes read beside bytes in the batch: one whose samples are kept whole is read often because it is asked for
# often.
_OVER = 2.0


def judge(run: Evidence) -> Judgement:
    """By how often an epoch reads what the files hold, and by bytes read beside bytes in the batch."""
    again = run.again
    if again is None or run.reread is None or not again.asked or not run.batch_bytes or run.make is None:
        return None
    asked = again.asked
    over = asked / run.batch_bytes
    if over < 0.1:
        return None  # they come in ways that are not counted: maps, sockets
    if over < _OVER:
        return RuledOut(by=f"{_count(over)} bytes are read for a byte of the batch")
    if run.drawn is None or not run.drawn.length or not run.reread.held:
        return None
    times = asked * run.drawn.length / run.reread.held
    told = (
        f"an epoch reads the files {_count(times)} times over, {_count(over)} bytes for a byte of the batch"
    )
    if times < _OFTEN:
        return RuledOut(by=told)
    if not _takes_time(again, asked):
        return RuledOut(by=f"{told}, but reading them takes no time to speak of")
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    # Files that are opened for every sample are read from their beginning each time: that is the cause then.
    reopened = (run.calls("reopen") or 0.0) >= 0.5
    # What is read and unpacked goes with the bytes; as much as the batch holds is left.
    frees = dict.fromkeys(("read", "transform"), 1 - 1 / over)
    return Found(
        share=saved_by(run, frees),
        frees=frees,
        weighs=run.lost,
        certainty=0.6 if reopened else 0.93,
        evidence=(told,),
    )


def _takes_time(again: Pass, asked: float) -> bool:
    """Whether the bytes come from afar, or keep the CPU busy: a few pages from memory do neither."""
    if max(again.disk or 0.0, again.received or 0.0) > 0.5 * asked:
        return True
    return again.busy > 0.5 and asked > _UNPACKED * again.cpu


def _count(times: float) -> str:
    return f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
