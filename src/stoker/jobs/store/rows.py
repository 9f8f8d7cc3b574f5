"""Rows of the tables as values, and back. No SQL but the columns' names."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from stoker.jobs.job import Attempt, Event, Job, Request
from stoker.jobs.states import State

JOB = (
    "id", "number", "request", "state", "created", "started", "ended", "step", "steps", "rate", "eta_s",
    "error", "waits_for", "verdict", "gpu", "memory", "phases", "cancel_asked",
)  # fmt: skip
ATTEMPT = (
    "number", "token", "engine", "handle", "created", "started", "ended", "outcome", "error", "first_step",
    "last_step",
)  # fmt: skip
# Why a job waits that is not the first of its line: its place says so, and the store need not be told.
_BEHIND = "waits for those before it in the queue"


def columns(table: str, names: Sequence[str]) -> str:
    """For a SELECT.

    >>> columns("job", ("id", "name"))
    'job.id, job.name'
    """
    return ", ".join(f"{table}.{name}" for name in names)


def to_jobs(found: Iterable[Sequence[Any]]) -> list[Job]:
    """Rows of `JOB`, the place in the queue and `ATTEMPT`: one for each attempt, or one without."""
    jobs = []
    for _, group in groupby(found, key=lambda row: row[0]):
        rows = list(group)
        position = len(JOB)
        attempts = [to_attempt(row[position + 1 :]) for row in rows if row[position + 1] is not None]
        jobs.append(_to_job(rows[0][:position], attempts, rows[0][position]))
    return jobs


def _to_job(row: Sequence[Any], attempts: Sequence[Attempt], position: int | None) -> Job:
    (id_, number, request, state, created, started, ended, step, steps, rate, eta_s, error, waits_for) = row[
        :13
    ]
    verdict, gpu, memory, phases = (from_text(one) for one in row[13:17])
    if waits_for is None and position is not None and position > 1:
        waits_for = _BEHIND
    return Job(
        id=id_,
        number=number,
        request=_request(request),
        state=State(state),
        created=created,
        position=position,
        started=started,
        ended=ended,
        step=step,
        steps=steps,
        rate=rate,
        eta_s=eta_s,
        error=error,
        waits_for=waits_for,
        verdict=verdict,
        gpu=gpu,
        memory=memory,
        phases=phases,
        cancel_asked=bool(row[17]),
        attempts=tuple(attempts),
    )


@lru_cache(maxsize=1000)
def _request(text: str) -> Request:
    """What was asked for never changes, and is most of what there is to read of a job."""
    return Request.from_json(json.loads(text))


def to_attempt(row: Sequence[Any]) -> Attempt:
    """A row of `ATTEMPT`."""
    number, token, engine, handle, created, started, ended, outcome, error, first, last = row
    return Attempt(
        number=number,
        token=token,
        engine=engine,
        handle=handle,
        created=created,
        started=started,
        ended=ended,
        outcome=None if outcome is None else State(outcome),
        error=error,
        first_step=first,
        last_step=last,
    )


def to_event(row: Sequence[Any]) -> Event:
    """A row of id, job, t, kind, body."""
    id_, job, t, kind, body = row
    return Event(id=id_, job=job, t=t, kind=kind, body=json.loads(body))


def to_text(value: Mapping[str, Any] | None) -> str | None:
    """JSON for a column."""
    return None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def from_text(text: str | None) -> dict[str, Any] | None:
    """A column of JSON."""
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    return found
