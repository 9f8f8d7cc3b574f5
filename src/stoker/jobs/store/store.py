"""The store as the service's users see it: ask for jobs, look at them, follow what happens.

    store = Store.open("sqlite:///jobs.db")            # or postgresql://ann@host/jobs
    job = store.create(request, key="monday-1")
    store.jobs(state=State.RUNNING).items
    store.news(after=last_seen)                        # points, lines and events, in their one order

From any thread. Who runs jobs writes through `stoker.jobs.store.holding`.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from stoker.errors import KeyTaken, MoveRefused, NoSuchJob
from stoker.jobs import states
from stoker.jobs.job import Event, Job, Line, Page, Point, Request
from stoker.jobs.states import State
from stoker.jobs.store import rows
from stoker.jobs.store.database import Database, Snapshot, Transaction, dialect_of

_POINT, _LINE, _EVENT = "id, job, name, step, value, t", "id, job, attempt, t, text", "id, job, t, kind, body"


class Store:
    """All that the service remembers."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self.clock = clock

    @classmethod
    def open(cls, url: str, *, clock: Callable[[], float] = time.time, checked: bool = False) -> "Store":
        """A store by its URL, its schema brought to this version; `checked`: read whole before, if a file."""
        database = Database(dialect_of(url))
        try:
            if checked:
                database.check()
            database.migrate()
        except BaseException:
            database.close()
            raise
        return cls(database, clock=clock)

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    # --- asking -----------------------------------------------------------------------------------

    def create(self, request: Request, *, key: str | None = None) -> Job:
        """A new job at the end of the queue; with a key that was given before, the job made then.

        KeyTaken where that one was another request.
        """
        told = json.dumps(request.to_json(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(told.encode()).hexdigest()
        with self.database.transaction() as do:
            if key is not None:
                found = do.read("SELECT id, digest FROM jobs WHERE idempotency_key = ?", (key,))
                if found:
                    [(id_, before)] = found
                    if before != digest:
                        raise KeyTaken(
                            f"the key {key!r} was used for job {id_}, which is another request: "
                            "send the same one again, or choose another key"
                        )
                    return read_job(do, id_)
            id_ = secrets.token_hex(6)
            number = do.next()
            do.write(
                "INSERT INTO jobs (id, number, name, workload, request, idempotency_key, digest, state, "
                "place, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (id_, number, request.name, request.workload, told, key, digest, State.QUEUED.value,
                 number, self.clock()),
            )  # fmt: skip
            self.note(do, id_, "state", {"state": State.QUEUED, "error": None, "attempt": 0})
            return read_job(do, id_)

    def ask_cancel(self, id_: str) -> Job:
        """Cancel a job: at once where nothing runs, else its process is told to save and stop."""
        with self.database.transaction() as do:
            job = read_job(do, id_)
            if not states.can_cancel(job.state):
                raise MoveRefused(f"job {id_} is {job.state}: there is nothing to cancel")
            if job.cancel_asked:
                return job
            self.note(do, id_, "asked", {"what": "cancel"})
            if job.state in states.HELD:
                do.write("UPDATE jobs SET cancel_asked = 1 WHERE id = ?", (id_,))
            else:
                self.move(do, job, State.CANCELLED)
            return read_job(do, id_)

    def ask_resume(self, id_: str) -> Job:
        """Queue a job again that failed, was cancelled or lost: it goes on from its last checkpoint."""
        with self.database.transaction() as do:
            job = read_job(do, id_)
            if not states.can_resume(job.state):
                raise MoveRefused(
                    f"job {id_} is {job.state}: only one that {_either(states.RESUMABLE)} can be resumed"
                )
            self.note(do, id_, "asked", {"what": "resume"})
            do.write(
                "UPDATE jobs SET place = ?, losses = 0, cancel_asked = 0, verdict = NULL WHERE id = ?",
                (do.next(), id_),
            )
            self.move(do, job, State.QUEUED)
            return read_job(do, id_)

    def retry(self, id_: str) -> Job:
        """The same request as a new job, from its beginning."""
        job = self.job(id_)
        if not states.can_retry(job.state):
            raise MoveRefused(
                f"job {id_} is {job.state}: only one that {_either(states.ENDED)} can be tried again"
            )
        return self.create(job.request)

    def delete(self, id_: str) -> None:
        """Forget a job that has ended; its folder is removed by the dispatcher."""
        with self.database.transaction() as do:
            job = read_job(do, id_)
            if not states.can_delete(job.state):
                raise MoveRefused(f"job {id_} is {job.state}: cancel it before it is deleted")
            for table in ("points", "lines", "events", "attempts"):
                do.write(f"DELETE FROM {table} WHERE job = ?", (id_,))
            do.write("DELETE FROM jobs WHERE id = ?", (id_,))
            self.note(do, id_, "deleted", {})

    # --- looking ----------------------------------------------------------------------------------

    def job(self, id_: str) -> Job:
        """One job, with its attempts and its place in the queue; NoSuchJob."""
        with self.database.snapshot() as do:
            return read_job(do, id_)

    def jobs(
        self,
        *,
        state: State | None = None,
        workload: str | None = None,
        name: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Page[Job]:
        """Jobs, the newest first; `name` is a part of it, `before` the `next` of the page before this one."""
        where, values = ["1 = 1"], []
        for condition, value in (
            ("state = ?", state),
            ("workload = ?", workload),
            ("LOWER(name) LIKE LOWER(?) ESCAPE '!'", None if name is None else _like(name)),
            ("number < ?", before),
        ):
            if value is not None:
                where.append(condition)
                values.append(str(value) if isinstance(value, State) else value)
        with self.database.snapshot() as do:
            found = do.read(
                f"SELECT {rows.JOB} FROM jobs WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?",
                (*values, limit + 1),
            )
            positions = _positions(do) if any(row[3] == State.QUEUED for row in found) else {}
            items = tuple(
                rows.to_job(row, _attempts(do, row[0]), positions.get(row[0])) for row in found[:limit]
            )
        return Page(items=items, next=items[-1].number if len(found) > limit else None)

    def position(self, id_: str) -> int | None:
        """The place in the queue, 1 is next; None where it is not queued."""
        return self.job(id_).position

    def counts(self) -> dict[State, int]:
        """Jobs by state."""
        found = dict(self.database.read("SELECT state, COUNT(*) FROM jobs GROUP BY state"))
        return {state: int(found.get(state.value, 0)) for state in State}

    # --- following --------------------------------------------------------------------------------

    def points(
        self, id_: str, *, after: int = 0, names: Sequence[str] | None = None, limit: int = 1000
    ) -> Page[Point]:
        """Points of a job's curves in the order they came; `after` is the id of the last one known."""
        more, values = "", list[Any]([id_, after])
        if names is not None:
            more = f" AND name IN ({', '.join('?' * len(names))})" if names else " AND 1 = 0"
            values += names
        found = self.database.read(
            f"SELECT {_POINT} FROM points WHERE job = ? AND id > ?{more} ORDER BY id LIMIT ?",
            (*values, limit + 1),
        )
        return _page([rows.to_point(row) for row in found], limit)

    def lines(self, id_: str, *, after: int = 0, limit: int = 1000) -> Page[Line]:
        """Lines of a job's log in their order."""
        found = self.database.read(
            f"SELECT {_LINE} FROM lines WHERE job = ? AND id > ? ORDER BY id LIMIT ?", (id_, after, limit + 1)
        )
        return _page([rows.to_line(row) for row in found], limit)

    def last_lines(self, id_: str, *, limit: int = 1000) -> Page[Line]:
        """The newest lines of a job's log, in their order."""
        found = self.database.read(
            f"SELECT {_LINE} FROM lines WHERE job = ? ORDER BY id DESC LIMIT ?", (id_, limit)
        )
        return Page(items=tuple(rows.to_line(row) for row in reversed(found)))

    def events(self, id_: str | None = None, *, after: int = 0, limit: int = 1000) -> Page[Event]:
        """What happened, to one job or to all, in its order."""
        of_job, values = ("", []) if id_ is None else (" AND job = ?", [id_])
        found = self.database.read(
            f"SELECT {_EVENT} FROM events WHERE id > ?{of_job} ORDER BY id LIMIT ?",
            (after, *values, limit + 1),
        )
        return _page([rows.to_event(row) for row in found], limit)

    def news(self, *, after: int, id_: str | None = None, limit: int = 1000) -> Page[Point | Line | Event]:
        """Points, lines and events together in their one order: nothing twice, nothing left out."""
        of_job, values = ("", []) if id_ is None else (" AND job = ?", [id_])
        found: list[Point | Line | Event] = []
        with self.database.snapshot() as do:
            for table, columns, make in (
                ("points", _POINT, rows.to_point),
                ("lines", _LINE, rows.to_line),
                ("events", _EVENT, rows.to_event),
            ):
                sql = f"SELECT {columns} FROM {table} WHERE id > ?{of_job} ORDER BY id LIMIT ?"
                found += [make(row) for row in do.read(sql, (after, *values, limit + 1))]
        found.sort(key=lambda one: one.id)
        return _page(found[: limit + 1], limit)

    def last_id(self) -> int:
        """The newest number given out."""
        [(last,)] = self.database.read("SELECT last FROM clock")
        return int(last)

    # --- inside a transaction -----------------------------------------------------------------------

    def note(self, do: Transaction, id_: str, kind: str, body: dict[str, Any]) -> None:
        """An event of a job."""
        do.write(
            "INSERT INTO events (id, job, t, kind, body) VALUES (?, ?, ?, ?, ?)",
            (do.next(), id_, self.clock(), kind, rows.to_text(body)),
        )

    def move(self, do: Transaction, job: Job, after: State, *, error: str | None = None) -> None:
        """Bring a job from the state it is in to another; MoveRefused where that may not follow."""
        if not states.may_move(job.state, after):
            raise MoveRefused(f"job {job.id} is {job.state} and cannot become {after}")
        ended = self.clock() if after in states.ENDED else None
        do.write(
            "UPDATE jobs SET state = ?, ended = ?, error = ?, waits_for = NULL WHERE id = ?",
            (after.value, ended, error, job.id),
        )
        attempt = job.attempts[-1].number if job.attempts else 0
        self.note(do, job.id, "state", {"state": after, "error": error, "attempt": attempt})


def read_job(do: Snapshot, id_: str) -> Job:
    """A job inside a transaction; NoSuchJob."""
    found = do.read(f"SELECT {rows.JOB} FROM jobs WHERE id = ?", (id_,))
    if not found:
        raise NoSuchJob(f"no job {id_!r}: `stoker jobs list` names those there are")
    position = _positions(do).get(id_) if found[0][3] == State.QUEUED else None
    return rows.to_job(found[0], _attempts(do, id_), position)


def _attempts(do: Snapshot, id_: str) -> list[Any]:
    found = do.read(f"SELECT {rows.ATTEMPT} FROM attempts WHERE job = ? ORDER BY number", (id_,))
    return [rows.to_attempt(row) for row in found]


def _positions(do: Snapshot) -> dict[str, int]:
    found = do.read("SELECT id FROM jobs WHERE state = ? ORDER BY place", (State.QUEUED.value,))
    return {row[0]: place for place, row in enumerate(found, 1)}


def _page(found: list[Any], limit: int) -> Page[Any]:
    items = tuple(found[:limit])
    return Page(items=items, next=items[-1].id if len(found) > limit else None)


def _like(part: str) -> str:
    """A part of a name, with what LIKE reads as a sign taken literally."""
    escaped = part.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


def _either(wanted: frozenset[State]) -> str:
    return f"is {', '.join(sorted(one.value for one in wanted))}"
