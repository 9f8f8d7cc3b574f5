"""One rank comes late to the collectives, and all the others wait for it."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.ranks import Lateness
from stoker.watch.words import duration, percent

ID = "straggler"
CURES = (
    Cure(change="that_rank", text="cure what that rank alone has: its data, its core, its garbage"),
    Cure(
        change="scheduled_gc",
        text="gc.freeze() after loading, and gc.collect() on all ranks at the same, rare steps",
        risk="memory grows in between",
    ),
    Cure(
        change="even_shares", text="give every rank as much to do: samples by their cost, not by their number"
    ),
)
_WORDS = {
    "wait": "waiting for its loader",
    "gc": "collecting garbage",
    "queued": "waiting for a core",
}
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
        f"and last in {percent(late.often)} of the steps"
    )
    if share < ALARM:
        return RuledOut(by=told)
    return Found(share=min(1.0, share), certainty=0.95, evidence=(told, *_why(late)))


def _why(late: Lateness) -> tuple[str, ...]:
    parts = sorted(late.more.items(), key=lambda one: one[1], reverse=True)
    named = [
        f"{duration(spent)} {_WORDS[name]}" for name, spent in parts if spent >= _WORTH_NAMING * late.seconds
    ]
    told = [f"beyond the other ranks it spends, a step: {', '.join(named)}"] if named else []
    if not named:
        told.append("it waits no longer than the others for data, cores or garbage: it computes longer")
    if late.replayed is not None:
        told.append(f"with held batches it comes {duration(max(0.0, late.replayed))} late")
    if late.causes:
        told.append(f"that rank by itself has: {', '.join(late.causes)}")
    return tuple(told)
