"""Several ranks beside one another: who comes late to the collectives, and what those cost by themselves.

Pure. A collective takes every rank but the last equally long, since all wait for that one; only the times of
arrival tell them apart. They are counted from when each rank was let go by the collective before: what a
rank does in between is its own doing, while a slow link lets some go later than others. What a collective
takes once all are there is the link's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from stoker.doctor.steadiness import doubt_of

# Steps in which all ranks met, for a mean of them.
_FEWEST = 8


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """Of the rank that comes last in the mean: seconds a step behind the last of the others."""

    rank: int
    seconds: float
    # The share of the steps in which it was the last.
    often: float
    # By how many seconds a step the mean may be off, nine times in ten.
    doubt: float = 0.0
    # The same with held batches; None where that was not measured.
    replayed: float | None = None
    # Seconds a step that it spends more than the others in the mean: wait, gc, queued.
    more: Mapping[str, float] = field(default_factory=dict)
    # What the causes say of this rank by itself.
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Together:
    """What the ranks do together. Times are seconds a step.

    `apart` is by how much the first of them is ahead of the last, `link` what collectives take with all
    ranks there and nothing left to compute, `meetings` how many a step, `bytes` what they move, `rate` bytes
    a second on the link while it is busy.
    """

    ranks: int
    late: Lateness
    ahead: Mapping[int, float]
    """Of each rank, how far behind the last of the others it is; less than 0: ahead."""
    apart: float
    link: float
    meetings: float
    bytes: float
    rate: float | None
    backwards: float
    """Times a step that DistributedDataParallel brings gradients together."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One step's meetings, of all ranks.

    `arrived` is, for each that ended a stretch of work, how long each rank had taken to get there.
    """

    arrived: tuple[tuple[float, ...], ...]
    link: float
    busy: float
    bytes: int
    meetings: int
    backwards: int


def together(lines: Mapping[int, Iterable[Mapping[str, Any]]]) -> Together | None:
    """From each rank's meetings; None where there are too few to tell."""
    by_rank = {rank: list(given) for rank, given in sorted(lines.items())}
    observed = _steps(by_rank, "observe")
    if len(by_rank) < 2 or len(observed) < _FEWEST:
        return None
    late = _lateness(observed)
    replayed = _steps(by_rank, "replay")
    if len(replayed) >= _FEWEST:
        late = Lateness(**{**vars(late), "replayed": _behind(replayed, late.rank)})
    busy = sum(step.busy for step in observed)
    moved = sum(step.bytes for step in observed)
    return Together(
        ranks=len(by_rank),
        late=late,
        ahead={rank: _behind(observed, at) for at, rank in enumerate(by_rank)},
        apart=fmean(sum(max(at) - min(at) for at in step.arrived) for step in observed),
        link=fmean(step.link for step in observed),
        meetings=fmean(step.meetings for step in observed),
        bytes=moved / len(observed),
        # Each rank sends and receives 2 (n - 1) / n of the whole for a sum over n.
        rate=moved * 2 * (len(by_rank) - 1) / len(by_rank) / busy if busy and moved else None,
        backwards=fmean(step.backwards for step in observed),
    )


def _lateness(steps: Sequence[_Step]) -> Lateness:
    count = len(steps[0].arrived[0])
    behind = {rank: _behind(steps, rank) for rank in range(count)}
    rank = max(behind, key=lambda one: behind[one])
    last = [max(range(count), key=at.__getitem__) for step in steps for at in step.arrived]
    return Lateness(
        rank=rank,
        seconds=max(0.0, behind[rank]),
        often=last.count(rank) / len(last),
        doubt=doubt_of(_each_behind(steps, rank)) or 0.0,
    )


def _behind(steps: Sequence[_Step], rank: int) -> float:
    """Seconds a step between a rank and the last of the others; less than 0 where it is ahead."""
    return fmean(_each_behind(steps, rank))


def _each_behind(steps: Sequence[_Step], rank: int) -> list[float]:
    return [
        sum(at[rank] - max(one for other, one in enumerate(at) if other != rank) for at in step.arrived)
        for step in steps
    ]


def _steps(by_rank: Mapping[int, Sequence[Mapping[str, Any]]], part: str) -> list[_Step]:
    """The steps of a part in which every rank was at the same collectives, each of them timed."""
    sorted_out: list[dict[int, list[Mapping[str, Any]]]] = []
    for lines in by_rank.values():
        steps: dict[int, list[Mapping[str, Any]]] = {}
        for line in lines:
            if line["part"] == part:
                steps.setdefault(line["step"], []).append(line)
        sorted_out.append(steps)
    if not sorted_out:
        return []
    found: list[_Step] = []
    released: Sequence[float] | None = None
    for number in sorted(sorted_out[0]):
        ranks = [steps.get(number, []) for steps in sorted_out]
        kinds = {tuple((one["kind"], one["ends"]) for one in lines) for lines in ranks}
        if len(kinds) != 1 or any(one["done"] is None for lines in ranks for one in lines):
            released = None
            continue
        step, released = _step(ranks, released)
        found.append(step)
    return [step for step in found if step.arrived]


def _step(
    ranks: Sequence[Sequence[Mapping[str, Any]]], released: Sequence[float] | None
) -> tuple[_Step, Sequence[float] | None]:
    """A step, and when each rank was let go by the last collective in it."""
    arrivals, link, busy, over = [], 0.0, 0.0, 0.0
    for same in zip(*ranks, strict=True):
        there = max(one["arrived"] for one in same)
        # When the first has the sum all has been sent; what holds the others up then is their own host.
        done = min(one["done"] for one in same)
        busy += max(0.0, done - max(there, over))
        over = max(over, done)
        if same[0]["ends"]:
            if released is not None:
                arrivals.append(tuple(one["arrived"] - let for one, let in zip(same, released, strict=True)))
            link += max(0.0, over - there)
            released = [one["done"] for one in same]
    step = _Step(
        arrived=tuple(arrivals),
        link=link,
        busy=busy,
        bytes=sum(one["bytes"] for one in ranks[0]),
        meetings=len(ranks[0]),
        backwards=sum(one["kind"] == "ddp" and one["ends"] for one in ranks[0]),
    )
    return step, released
