"""One evidence of several ranks: what is true of all of them, and what they do together.

The causes of one process are judged by the rank that comes first to the collectives. What it spends, all of
them spend; what the others spend beyond that makes them late, and is the straggler's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from stoker.doctor.causes import ALL
from stoker.doctor.evidence import Evidence, read
from stoker.doctor.finding import ALARM, Found
from stoker.doctor.meetings import NAME
from stoker.doctor.ranks import Lateness, Together, together
from stoker.scratch import Message
from stoker.watch import Record

_KEY = "collectives"


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
    meetings = None
    missing = _why_not(messages)
    if missing is None:
        meetings = together({rank: _lines(record, rank) for rank in found})
        missing = "the ranks met in too few steps" if meetings is None else None
    first = found[min(found) if meetings is None else _first(meetings, found)]
    if meetings is not None:
        meetings = replace(meetings, late=_blamed(meetings.late, found, messages))
    return replace(
        first,
        together=meetings,
        cores=_sum(evidence.cores for evidence in found.values()),
        process={**first.process, "affinity": _masks(found.values())},
        missing=first.missing if missing is None else {**first.missing, _KEY: missing},
    )


def _why_not(messages: Sequence[Message]) -> str | None:
    told = [message.body for message in messages if message.kind == "burden"]
    if not told:
        return "arrivals at them are not in a record alone, or the ranks were not observed to the end"
    if any(body["on_device"] for body in told):
        return "collectives on a GPU are not timed"
    if any(body["of_some_ranks"] for body in told):
        return "some collectives are of a part of the ranks"
    return None


def _lines(record: Record, rank: int) -> list[dict[str, Any]]:
    path = record.ranks[rank].folder / f"{NAME}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _first(meetings: Together, found: Mapping[int, Evidence]) -> int:
    """The rank that is furthest ahead of the late one."""
    return min(meetings.ahead, key=lambda rank: meetings.ahead[rank]) if meetings.ahead else min(found)


def _blamed(late: Lateness, found: Mapping[int, Evidence], messages: Sequence[Message]) -> Lateness:
    """What the late rank spends more on than the others, and what its own evidence says."""
    burdens = {message.rank: message.body for message in messages if message.kind == "burden"}
    spent = {
        rank: {
            "wait": evidence.wait,
            "gc": burdens.get(rank, {}).get("gc"),
            "queued": burdens.get(rank, {}).get("queued"),
        }
        for rank, evidence in found.items()
    }
    more = {}
    for name in ("wait", "gc", "queued"):
        own = spent[late.rank][name]
        others = [spent[rank][name] for rank in found if rank != late.rank]
        if own is not None and all(value is not None for value in others):
            more[name] = own - fmean(value for value in others if value is not None)
    return replace(late, more=more, causes=_causes(found[late.rank]))


def _causes(run: Evidence) -> tuple[str, ...]:
    """The causes that are found in one rank by itself, the worst first."""
    judged = [(cause.ID, cause.judge(run)) for cause in ALL]
    found = [(name, one) for name, one in judged if isinstance(one, Found)]
    worst = sorted(found, key=lambda one: one[1].weight, reverse=True)
    return tuple(name for name, one in worst if one.share is None or one.share >= ALARM)


def _sum(values: Any) -> float | None:
    known = list(values)
    return None if any(value is None for value in known) else sum(known)


def _masks(found: Any) -> int | None:
    """Cores that the ranks may use together: each may be kept to its own."""
    masks = [evidence.process.get("cores_allowed") for evidence in found]
    if any(mask is None for mask in masks):
        return None
    return len(set().union(*masks))
