"""One evidence of several ranks: what is true of all of them, and what they do together.

The causes of one process are judged by the rank that comes first to the collectives. What it spends, all of
them spend; what the others spend beyond that makes them late, and is the straggler's.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from stoker.doctor.causes import ALL
from stoker.doctor.evidence import MOST_STEPS, Evidence, read
from stoker.doctor.finding import Found
from stoker.doctor.ranks import Together, Transfer
from stoker.doctor.steadiness import doubt_of
from stoker.scratch import Message
from stoker.watch import Record
from stoker.watch.phases import PHASES
from stoker.watch.ranks import Joined, join_record, why_not_joined
from stoker.watch.record import RankRecord

# What is missing where ranks could not be joined.
KEY = "collectives"


def read_ranks(
    record: Record, messages: Sequence[Message], host: Mapping[str, Any], more: Mapping[str, Any]
) -> Evidence | None:
    """What the record of several ranks tells; None where one of them made no step."""
    found: dict[int, Evidence] = {}
    for rank in record.ranks:
        evidence = read(record, messages, host, more, rank)
        if evidence is None:
            return None
        found[rank] = evidence
    if len(found) == 1:
        return next(iter(found.values()))
    stretches = {rank: _stretch(record.ranks[rank], _told(messages, rank)) for rank in found}
    missing, met = why_not_joined(record), None
    if missing is None:
        met = join_record(record, {rank: stretch.has for rank, stretch in stretches.items()})
        missing = "the ranks met in too few steps" if met is None else None
    first = found[min(found) if met is None else met.first]
    return replace(
        first,
        together=None if met is None else _together(record, met, found, stretches, messages),
        cores=_sum(evidence.cores for evidence in found.values()),
        # Of a record alone nothing is known of the process, and that is told by there being nothing.
        process={**first.process, "affinity": _masks(found.values())} if first.process else {},
        missing={**first.missing, **_links_missing(messages), **({} if missing is None else {KEY: missing})},
    )


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """The steps of one rank that were observed, by number, and when; garbage collected in them, a step."""

    first: int
    last: int
    began: float | None
    ended: float | None
    gc: float | None
    gc_wait: float | None

    def has(self, step: int) -> bool:
        return self.first <= step <= self.last


def _told(messages: Sequence[Message], rank: int) -> dict[str, Mapping[str, Any]]:
    return {one.kind: one.body for one in messages if one.rank == rank}


def _stretch(rank: RankRecord, told: Mapping[str, Mapping[str, Any]]) -> _Stretch:
    """Of a diagnosis the observed part; of a record alone all but the first step, or the last of many."""
    began, ended = told.get("began", {}).get("t"), told.get("observed", {}).get("t")
    first, last, count, spent, waiting = sys.maxsize, -1, 0, 0.0, 0.0
    known = True
    for step in rank.steps():
        if (began is None and step.step == 0) or not _within(step.t, began, ended):
            continue
        first, last, count = min(first, step.step), step.step, count + 1
        known = known and step.gc is not None
        spent, waiting = spent + (step.gc or 0.0), waiting + (step.gc_wait or 0.0)
    return _Stretch(
        first=max(first, last - MOST_STEPS),
        last=last,
        began=began,
        ended=ended,
        gc=spent / count if count and known else None,
        gc_wait=waiting / count if count and known else None,
    )


def _together(
    record: Record,
    met: Joined,
    found: Mapping[int, Evidence],
    stretches: Mapping[int, _Stretch],
    messages: Sequence[Message],
) -> Together:
    late = met.late.ranks
    cores = {rank: _cores(record.ranks[rank], stretches[rank], found[rank].step) for rank in found}
    usual = _usual_queue([cores[rank] for rank in found if rank not in late])
    spent = {rank: _spent(met, rank, found[rank], stretches[rank], cores[rank], usual) for rank in found}
    return Together(
        met=met,
        doubt=doubt_of(met.late.each) or 0.0,
        replayed=_replayed(record, messages, late),
        more=_beyond(spent, late, ("wait", "gc", "queued", "work")),
        phases=_beyond(spent, late, tuple(f"own_{name}" for name in PHASES)),
        causes=_causes(found[late[0]]),
        crowded={rank: told.beside for rank, told in cores.items() if told is not None},
        transfers=_transfers(messages),
    )


@dataclass(frozen=True, kw_only=True)
class _Cores:
    """Seconds a step that the training thread had a core and stood in line for one, and that others did."""

    computed: float
    queued: float
    beside: float


def _cores(rank: RankRecord, stretch: _Stretch, step: float) -> _Cores | None:
    """By the counters beside a run; None where the platform does not say."""
    lines = [
        line
        for line in rank.resources()
        if line.get("loop_queued_s") is not None and _within(line["t"], stretch.began, stretch.ended)
    ]
    if len(lines) < 2 or lines[-1]["t"] <= lines[0]["t"]:
        return None
    first, last = lines[0], lines[-1]
    steps = (last["t"] - first["t"]) / step
    computed, queued, whole = (
        max(0.0, (last.get(name) or 0.0) - (first.get(name) or 0.0)) / steps
        for name in ("loop_cpu_s", "loop_queued_s", "queued_s")
    )
    return _Cores(computed=computed, queued=queued, beside=max(0.0, whole - queued))


def _usual_queue(others: Sequence[_Cores | None]) -> float | None:
    """Seconds in line for each on a core, of the ranks that are not late; None where one does not tell."""
    known = [one for one in others if one is not None]
    computed = sum(one.computed for one in known)
    if len(known) < len(others) or not computed:
        return None
    return sum(one.queued for one in known) / computed


def _spent(
    met: Joined, rank: int, run: Evidence, stretch: _Stretch, cores: _Cores | None, usual: float | None
) -> dict[str, float | None]:
    """Seconds a step, standing in collectives apart: by phase, and by what they were spent for.

    Who computes more stands in line more, on a machine that others use too: that much goes with what is
    computed, and `queued` is what comes on top of it, by the other ranks' turns.
    """
    stood = met.ranks[rank].stood_in
    own = {name: (run.shares.get(name) or 0.0) * run.step - stood.get(name, 0.0) for name in PHASES}
    queued, in_draws = None, 0.0
    if cores is not None and usual is not None:
        queued = cores.queued - usual * cores.computed
        if not run.workers and run.making.get("queued") is not None:
            making = run.making
            in_draws = (making["queued"] - usual * (making.get("cpu") or 0.0)) * run.batches
    gc, gc_wait = stretch.gc or 0.0, stretch.gc_wait or 0.0
    return {
        "wait": own["wait"] - gc_wait - in_draws,
        "gc": stretch.gc,
        "queued": queued,
        "work": sum(own.values()) - own["wait"] - (gc - gc_wait) - ((queued or 0.0) - in_draws),
        **{f"own_{name}": spent for name, spent in own.items()},
    }


def _beyond(
    spent: Mapping[int, Mapping[str, float | None]], late: Sequence[int], names: Iterable[str]
) -> dict[str, float]:
    """What the late ranks spend more than the others in the mean, where all of them tell it."""
    more = {}
    for name in names:
        theirs = [spent[rank][name] for rank in late]
        others = [spent[rank][name] for rank in spent if rank not in late]
        if None not in theirs and None not in others:
            mean = fmean(value for value in theirs if value is not None)
            more[name.removeprefix("own_")] = mean - fmean(value for value in others if value is not None)
    return more


def _replayed(record: Record, messages: Sequence[Message], late: Sequence[int]) -> float | None:
    """How far behind the same ranks come with held batches; None where that was not measured."""
    wanted = {}
    for number, rank in record.ranks.items():
        told = _told(messages, number).get("replay")
        if told is None:
            return None
        steps = [one.step for one in rank.steps() if _within(one.t, told["began"], told["t"])]
        if not steps:
            return None
        wanted[number] = range(steps[0], steps[-1] + 1).__contains__
    met = join_record(record, wanted)
    return None if met is None else met.behind(late)


def _transfers(messages: Sequence[Message]) -> tuple[Transfer, ...]:
    told = [one for message in messages if message.kind == "links" for one in message.body["transfers"]]
    return tuple(Transfer(**one) for one in sorted(told, key=lambda one: (one["sender"], one["receiver"])))


def _links_missing(messages: Sequence[Message]) -> dict[str, str]:
    why = [message.body["why"] for message in messages if message.kind == "links" and message.body["why"]]
    return {"links": why[0]} if why else {}


def _causes(run: Evidence) -> tuple[str, ...]:
    """The causes that are found in one rank by itself, the worst first."""
    judged = [(cause.ID, cause.judge(run)) for cause in ALL]
    found = [(name, one) for name, one in judged if isinstance(one, Found) and not one.is_minor]
    if all(one.behind for _, one in found):
        return ()
    return tuple(name for name, _ in sorted(found, key=lambda one: one[1].weight, reverse=True))


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _masks(found: Iterable[Evidence]) -> int | None:
    """Cores that the ranks may use together: each may be kept to its own."""
    cores: set[int] = set()
    for evidence in found:
        mask = evidence.process.get("cores_allowed")
        if mask is None:
            return None
        cores.update(mask)
    return len(cores)


def _within(t: float, began: float | None, ended: float | None) -> bool:
    return (began is None or t > began) and (ended is None or t <= ended + 1e-3)
