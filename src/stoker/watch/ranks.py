"""Several ranks of a run beside one another: who comes late to collectives, and what those cost themselves.

Pure, but for `join_record`. A collective takes every rank but the last equally long, since all wait for that
one; only arrivals tell them apart. They are counted from when each rank was let go by the collective before:
what a rank does in between is its own doing, while a slow link lets some go later than others. What a
collective takes once all are there is the link's.

Ranks of one host have one clock. Those of several hosts, and of several devices, have one each, and are laid
beside each other by the end of each step's last collective, which comes to all of them at about the same
time: no offset has to be known, and none can drift.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import fmean

from stoker.watch.phases import Meeting
from stoker.watch.record import Record

# Steps in which all ranks met, for a mean of them.
_FEWEST = 8
# Of what is lost to all that come late, what fewer of them must account for to be named alone.
_MOST_OF_IT = 0.75


@dataclass(frozen=True, kw_only=True)
class OfRank:
    """One rank, in seconds a step.

    `worked` is from being let go to coming to the next collective, `stood_in` standing in them, by phase;
    `behind` how far after the last of the others it comes, less than 0 where before; `last` the share of
    steps in which it came last.
    """

    worked: float
    stood_in: Mapping[str, float]
    behind: float
    last: float

    @property
    def stood(self) -> float:
        """In collectives, whatever the phase."""
        return sum(self.stood_in.values())


@dataclass(frozen=True, kw_only=True)
class Late:
    """The ranks that come last in the mean, the latest first: seconds a step behind the last of the others.

    `often` is the share of steps in which one of them came last, `each` the seconds of every step.
    """

    ranks: tuple[int, ...]
    seconds: float
    often: float
    each: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What the ranks of a run do together. Times are seconds a step.

    `apart` is by how much the first of them is ahead of the last, `link` what collectives take with all ranks
    there and nothing left to compute, `meetings` how many a step, `bytes` what they move, None where one did
    not tell; `backwards` how often a step DistributedDataParallel brings gradients together.
    """

    steps: int
    ranks: Mapping[int, OfRank]
    late: Late
    apart: float
    link: float
    meetings: float
    bytes: float | None
    backwards: float

    @property
    def first(self) -> int:
        """The rank that is furthest ahead."""
        return min(self.ranks, key=lambda rank: self.ranks[rank].worked)

    def behind(self, ranks: Sequence[int]) -> float:
        """How far behind the last of the others these come, by what each works in the mean."""
        others = [one.worked for rank, one in self.ranks.items() if rank not in ranks]
        return max(self.ranks[rank].worked for rank in ranks) - max(others)

    @property
    def rate(self) -> float | None:
        """Bytes a second that each rank sends for sums over all, at the most: some go while it computes."""
        if not self.bytes or not self.link:
            return None
        return self.bytes * 2 * (len(self.ranks) - 1) / len(self.ranks) / self.link


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One step's collectives: for each how long every rank took to get there; seconds in them, by phase."""

    worked: tuple[tuple[float, ...], ...]
    stood: tuple[Mapping[str, float], ...]
    link: float
    bytes: int | None
    meetings: int
    backwards: int


def join_record(record: Record, wanted: Mapping[int, Callable[[int], bool]] | None = None) -> Joined | None:
    """The ranks of a record; of steps that are `wanted` of a rank, where that is told."""
    lines = {
        rank: (one for one in of.meetings() if wanted is None or wanted[rank](one.step))
        for rank, of in record.ranks.items()
    }
    return join(lines, {rank: _clock_of(of.about, rank) for rank, of in record.ranks.items()})


def why_not_joined(record: Record) -> str | None:
    """Why a record's ranks cannot be joined by their collectives; None where nothing speaks against it."""
    world = record.about.get("world_size") or len(record.ranks)
    absent = [str(rank) for rank in range(world) if rank not in record.ranks]
    if absent:
        return (
            f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)} of {world} left no record here: copy "
            "their folders beside the others'"
        )
    told = [of.about.get("collectives") for of in record.ranks.values()]
    if any(one is None for one in told):
        return "the record was made without them"
    steps = max(1, *(of.about.get("steps") or 0 for of in record.ranks.values()))
    if any(one["of_some_ranks"] > steps / 2 for one in told if one):
        return "some of them are of a part of the ranks"
    if all(next(of.meetings(), None) is None for of in record.ranks.values()):
        if any(one["untimed"] for one in told if one):
            return "they go on beside the loop, or on a stream of their own"
        return "none was seen"
    return None


def join(meetings: Mapping[int, Iterable[Meeting]], clocks: Mapping[int, str] | None = None) -> Joined | None:
    """From each rank's meetings; None where there are too few to tell. `clocks` names each rank's."""
    numbers = sorted(meetings)
    if len(numbers) < 2:
        return None
    shared = [(clocks or {}).get(rank, "") for rank in numbers]
    steps = [step for step in _steps([meetings[rank] for rank in numbers], shared) if step.worked]
    if len(steps) < _FEWEST:
        return None
    known = [step.bytes for step in steps if step.bytes is not None]
    last = [max(range(len(numbers)), key=partial(_worked, step)) for step in steps]
    return Joined(
        steps=len(steps),
        ranks={
            rank: OfRank(
                worked=fmean(_worked(step, at) for step in steps),
                stood_in=_mean_by_phase([step.stood[at] for step in steps]),
                behind=fmean(_behind(steps, (at,))),
                last=last.count(at) / len(last),
            )
            for at, rank in enumerate(numbers)
        },
        late=_late(steps, numbers, last),
        apart=fmean(sum(max(at) - min(at) for at in step.worked) for step in steps),
        link=fmean(step.link for step in steps),
        meetings=fmean(step.meetings for step in steps),
        bytes=sum(known) / len(steps) if len(known) == len(steps) else None,
        backwards=fmean(step.backwards for step in steps),
    )


def _late(steps: Sequence[_Step], numbers: Sequence[int], last: Sequence[int]) -> Late:
    """As few ranks as account for most of what is lost to half of them or fewer.

    Several may be late together, for one reason: those of a busy host, say. Each by itself is then no later
    than the last of the others.
    """
    order = sorted(
        range(len(numbers)), key=lambda at: fmean(_worked(step, at) for step in steps), reverse=True
    )
    found = {count: _behind(steps, order[:count]) for count in range(1, len(numbers) // 2 + 1)}
    most = max(fmean(each) for each in found.values())
    count = next(count for count, each in found.items() if fmean(each) >= min(most, _MOST_OF_IT * most))
    chosen = order[:count]
    return Late(
        ranks=tuple(numbers[at] for at in chosen),
        seconds=max(0.0, fmean(found[count])),
        often=sum(at in chosen for at in last) / len(last),
        each=tuple(found[count]),
    )


def _worked(step: _Step, at: int) -> float:
    return sum(worked[at] for worked in step.worked)


def _behind(steps: Sequence[_Step], chosen: Sequence[int]) -> list[float]:
    """Of each step, seconds from the last of the others to the last of these ranks; less than 0: ahead."""
    others = [at for at in range(len(steps[0].stood)) if at not in chosen]
    return [
        sum(max(at[one] for one in chosen) - max(at[one] for one in others) for at in step.worked)
        for step in steps
    ]


def _steps(ranks: Sequence[Iterable[Meeting]], clocks: Sequence[str]) -> Iterator[_Step]:
    """The steps in which every rank was at the same collectives."""
    released: Sequence[float] | None = None
    for same in _in_step(ranks):
        if same is None or len({tuple(one.kind for one in lines) for lines in same}) != 1:
            released = None
            continue
        step, released = _step(same, released, clocks)
        yield step


def _in_step(ranks: Sequence[Iterable[Meeting]]) -> Iterator[list[list[Meeting]] | None]:
    """Step by step the meetings of every rank, which come in order; None for one that some of them lack."""
    groups = [groupby(lines, key=lambda one: one.step) for lines in ranks]

    def following(at: int) -> tuple[int, list[Meeting]] | None:
        found = next(groups[at], None)
        return None if found is None else (found[0], list(found[1]))

    heads = [following(at) for at in range(len(groups))]
    while True:
        numbers = [head[0] for head in heads if head is not None]
        if len(numbers) < len(heads):
            return
        furthest = max(numbers)
        if min(numbers) == furthest:
            yield [head[1] for head in heads if head is not None]
            heads = [following(at) for at in range(len(groups))]
        else:
            yield None
            heads = [
                following(at) if number < furthest else head
                for at, (number, head) in enumerate(zip(numbers, heads, strict=True))
            ]


def _step(
    ranks: Sequence[Sequence[Meeting]], released: Sequence[float] | None, clocks: Sequence[str]
) -> tuple[_Step, Sequence[float]]:
    """A step, and when each rank was let go by the last collective in it."""
    ends = [lines[-1].done for lines in ranks]
    # Of each clock the moment at which the first of its ranks had the sum: all has been sent by then, and
    # what holds the others of that host up is the host.
    zero = {clock: min(end for end, of in zip(ends, clocks, strict=True) if of == clock) for clock in clocks}
    worked, link = [], 0.0
    for same in zip(*ranks, strict=True):
        if released is not None:
            worked.append(tuple(one.arrived - let for one, let in zip(same, released, strict=True)))
        there = max(one.arrived - zero[clock] for one, clock in zip(same, clocks, strict=True))
        done = min(one.done - zero[clock] for one, clock in zip(same, clocks, strict=True))
        link += max(0.0, done - there)
        released = [one.done for one in same]
    assert released is not None
    sizes = [one.bytes for one in ranks[0]]
    step = _Step(
        worked=tuple(worked),
        stood=tuple(_by_phase(lines) for lines in ranks),
        link=link,
        bytes=None if None in sizes else sum(size for size in sizes if size is not None),
        meetings=len(ranks[0]),
        backwards=sum(one.kind == "ddp" for one in ranks[0]),
    )
    return step, released


def _by_phase(meetings: Iterable[Meeting]) -> dict[str, float]:
    stood: dict[str, float] = {}
    for one in meetings:
        stood[one.phase] = stood.get(one.phase, 0.0) + one.stood
    return stood


def _mean_by_phase(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    phases = sorted({phase for step in steps for phase in step})
    return {phase: fmean(step.get(phase, 0.0) for step in steps) for phase in phases}


def _clock_of(about: Mapping[str, object], rank: int) -> str:
    """A name that ranks with one clock share: their host's, unless each tells a device's."""
    told = about.get("collectives")
    host = str(about.get("host") or "")
    own = isinstance(told, Mapping) and told.get("clock") == "device"
    return f"{host}/{rank}" if own else host
