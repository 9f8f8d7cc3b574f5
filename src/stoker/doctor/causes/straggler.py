"""One rank comes late to the collectives, and all the others wait for it."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.ranks import Lateness
from stoker.watch.words import duration, percent

ID = "straggler"
_DATA = Cure(change="rank_data", text="give that rank's loader what it lacks, or every rank samples as dear")
_GC = Cure(
    change="scheduled_gc",
    text="gc.freeze() once all is loaded, and gc.collect() on all ranks at the same, rare steps",
    risk="memory grows in between",
)
_HOST = Cure(change="rank_host", text="end or move what shares that rank's cores, or pin the rank elsewhere")
_WORK = Cure(change="rank_work", text="give every rank as much to compute")
CURES = (_DATA, _GC, _HOST, _WORK)

# What a rank may spend more than the others, in words, and what is to be done about it.
_PARTS = {
    "wait": ("waiting for its loader", _DATA),
    "gc": ("collecting garbage", _GC),
    "queued": ("waiting for a core", _HOST),
}
# Of the alarm, what the lateness must come to at the least where it is not the rank's own doing: while others
# use its core a rank is late, and they may do so by chance.
_LEAST_SURE = 0.5
# Of the lateness, for something to be named as part of it.
_WORTH_NAMING = 0.1


def judge(run: Evidence) -> Judgement:
    """By when each rank comes to the collectives: how far the last one in the mean is behind the others."""
    if run.together is None:
        return RuledOut(by="one process trains by itself") if run.process.get("world") == 1 else None
    late = run.together.late
    share = late.seconds / run.step
    told = (
        f"rank {late.rank} comes {duration(late.seconds)} a step after the last of the others in the mean, "
        f"and is the last one in {percent(late.often)} of the steps"
    )
    if share < ALARM:
        return RuledOut(by=told)
    its_own = sum(max(0.0, late.more.get(name, 0.0)) for name in ("wait", "gc"))
    if its_own < late.seconds / 2 and late.seconds - late.doubt < _LEAST_SURE * ALARM * run.step:
        return RuledOut(by=f"{told}; by stretches of the steps that may be off by {duration(late.doubt)}")
    named = sorted(
        (name for name, spent in late.more.items() if spent >= _WORTH_NAMING * late.seconds),
        key=lambda name: late.more[name],
        reverse=True,
    )
    return Found(
        share=min(1.0, share),
        certainty=0.95,
        evidence=(told, *_why(late, named)),
        computes=late.replayed is None or late.replayed > late.seconds / 2,
        cures=tuple(_PARTS[name][1] for name in named) or (_WORK,),
    )


def _why(late: Lateness, named: list[str]) -> tuple[str, ...]:
    spent = ", ".join(f"{duration(late.more[name])} {_PARTS[name][0]}" for name in named)
    told = [f"beyond the other ranks it spends, a step: {spent}"]
    if not named:
        told = ["it waits no longer than the others for data, cores or garbage: it computes longer"]
    if late.replayed is not None:
        told.append(f"with held batches it comes {duration(max(0.0, late.replayed))} late")
    if late.causes:
        told.append(f"that rank by itself has: {', '.join(late.causes)}")
    return tuple(told)
