"""One rank, or some of them, come late to the collectives, and all the others wait for them."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.ranks import Together
from stoker.watch.phases import PHASES
from stoker.watch.words import duration, percent

ID = "straggler"
_DATA = Cure(change="rank_data", text="give that rank's loader what it lacks, or every rank samples as dear")
_GC = Cure(
    change="scheduled_gc",
    text="gc.freeze() once all is loaded, and gc.collect() on all ranks at the same, rare steps",
    risk="memory grows in between",
)
_HOST = Cure(change="rank_host", text="end or move what shares that rank's cores, or pin the rank elsewhere")
_WORK = Cure(
    change="rank_work",
    text="give every rank as much to do; what one does alone (logging, checkpoints), rarely or by a thread",
)
CURES = (_DATA, _GC, _HOST, _WORK)

# What a rank may spend more than the others, in words, and what is to be done about it.
_PARTS = {
    "wait": ("waiting for its loader", _DATA),
    "gc": ("collecting garbage", _GC),
    "queued": ("waiting for a core", _HOST),
    "work": ("at work", _WORK),
}
# Of the alarm, what the lateness must come to at the least where it is not the rank's own doing: while others
# use its core a rank is late, and they may do so by chance.
_LEAST_SURE = 0.5
# Of the lateness, for something to be named as part of it.
_WORTH_NAMING = 0.1


def judge(run: Evidence) -> Judgement:
    """By when each rank comes to the collectives: how far the last in the mean are behind the others."""
    if run.together is None:
        return RuledOut(by="one process trains by itself") if run.process.get("world") == 1 else None
    ranks, late = run.together, run.together.met.late
    share = late.seconds / run.step
    told = (
        f"{_who(late.ranks)} {duration(late.seconds)} a step after the last of the others in the mean, "
        f"and last in {percent(late.often)} of the steps"
    )
    if share < ALARM:
        return RuledOut(by=told)
    its_own = sum(max(0.0, ranks.more.get(name, 0.0)) for name in ("wait", "gc"))
    if its_own < late.seconds / 2 and late.seconds - ranks.doubt < _LEAST_SURE * ALARM * run.step:
        return RuledOut(by=f"{told}; by stretches of the steps that may be off by {duration(ranks.doubt)}")
    named = sorted(
        (name for name, spent in ranks.more.items() if spent >= _WORTH_NAMING * late.seconds),
        key=lambda name: ranks.more[name],
        reverse=True,
    )
    return Found(
        share=min(1.0, share),
        certainty=0.95,
        evidence=(told, *_why(ranks, named)),
        computes=ranks.replayed is None or ranks.replayed > late.seconds / 2,
        cures=tuple(_PARTS[name][1] for name in named) or (_WORK,),
    )


def _who(late: tuple[int, ...]) -> str:
    if len(late) == 1:
        return f"rank {late[0]} comes"
    return f"ranks {', '.join(map(str, sorted(late)))} come"


def _why(ranks: Together, named: list[str]) -> tuple[str, ...]:
    one = len(ranks.met.late.ranks) == 1
    spent = ", ".join(f"{duration(ranks.more[name])} {_PARTS[name][0]}" for name in named)
    told = [f"beyond the other ranks {'it spends' if one else 'they spend'}, a step: {spent}"]
    if not named:
        told = ["no more is spent than by the others on data, cores or garbage"]
    if not named or named[0] == "work":
        told += _where(ranks)
    if ranks.replayed is not None:
        late = duration(max(0.0, ranks.replayed))
        told.append(f"with held batches {'it comes' if one else 'they come'} {late} late")
    if ranks.causes:
        told.append(f"rank {ranks.met.late.ranks[0]} by itself has: {', '.join(ranks.causes)}")
    return tuple(told)


def _where(ranks: Together) -> list[str]:
    """The phases in which more is spent, collectives apart, the most first."""
    least = _WORTH_NAMING * ranks.met.late.seconds
    more = sorted((name for name in PHASES if ranks.phases.get(name, 0.0) >= least), key=ranks.phases.get)  # type: ignore[arg-type]
    if not more:
        return []
    return ["by phase that is " + ", ".join(f"{duration(ranks.phases[name])} {name}" for name in more[::-1])]
