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

_POINT, _LINE, _EVENT = ", ".join(Point._fields), ", ".join(Line._fields), "id, job, t, kind, body"
# A job with its attempts and its place in the queue is one statement: it sees one moment by itself, and a
# list of twenty does not ask the database twenty times. A place is counted in the index: 26 us behind 600.
_PLACE = (
    "CASE WHEN job.state = 'queued' THEN (SELECT COUNT(*) FROM jobs AS ahead "
    "WHERE ahead.state = 'queued' AND ahead.needs_card = job.needs_card AND ahead.place <= job.place) END"
)
_JOBS = (
    f"SELECT {rows.columns('job', rows.JOB)}, {_PLACE}, {rows.columns('attempt', rows.ATTEMPT)} "
    "FROM (SELECT * FROM jobs WHERE {where}) AS job LEFT JOIN attempts AS attempt ON attempt.job = job.id "
    "ORDER BY job.{order}, attempt.number"
)
_ONE = _JOBS.format(where="id = ?", order="place")


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

    def create(self, request: Request, *, key: str | None = None, digest: str | None = None) -> Job:
        """A new job at the end of the queue; with a key that was given before, the job made then.

        KeyTaken where that one was another request: by its `digest`, which is of what was sent, or of the
        request itself where none is given.
        """
        told = json.dumps(request.to_json(), sort_keys=True, separators=(",", ":"))
        of_request = hashlib.sha256(told.encode()).hexdigest()
        digest = digest or of_request
        with self.database.transaction() as do:
            if key is not None:
                found = do.read("SELECT id, digest FROM jobs WHERE idempotency_key = ?", (key,))
                if found:
                    [(id_, before)] = found
                    # Those of earlier versions have the digest of the request.
                    if before not in (digest, of_request):
                        raise KeyTaken(
                            f"the key {key!r} was used for job {id_}, which is another request: "
                            "send the same one again, or choose another key"
                        )
                    return read_job(do, id_)
            id_ = secrets.token_hex(6)
            number = do.next()
            do.write(
                "INSERT INTO jobs (id, number, name, workload, request, idempotency_key, digest, state, "
                "place, needs_card, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (id_, number, request.name, request.workload, told, key, digest, State.QUEUED.value,
                 number, int(request.gpus > 0), self.clock()),
            )  # fmt: skip
            self.note(do, id_, "state", {"state": State.QUEUED, "error": None, "attempt": 0})
            return read_job(do, id_)

    def made_by(self, key: str, digest: str) -> Job | None:
        """The job that was made with this key of what has this digest; None where there is none such."""
        found = read_jobs(self.database, "idempotency_key = ? AND digest = ?", (key, digest))
        return found[0] if found else None

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
        return _only(self.database.read(_ONE, (id_,)), id_)

    def some(self, ids: Sequence[str]) -> dict[str, Job]:
        """Those of these jobs that are there, by id."""
        if not ids:
            return {}
        return {job.id: job for job in read_jobs(self.database, f"id IN ({marks(ids)})", ids)}

    def check(self, id_: str) -> None:
        """NoSuchJob where there is none of that id."""
        if not self.database.read("SELECT 1 FROM jobs WHERE id = ?", (id_,)):
            raise _missing(id_)

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
        condition = f"{' AND '.join(where)} ORDER BY number DESC LIMIT ?"
        items = read_jobs(self.database, condition, (*values, limit + 1), order="number DESC")
        return Page(items=tuple(items[:limit]), next=items[limit - 1].number if items[limit:] else None)

    def position(self, id_: str) -> int | None:
        """The place in its line of the queue, 1 is next; None where it is not queued."""
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
            more = f" AND name IN ({marks(names)})" if names else " AND 1 = 0"
            values += names
        found = self.database.read(
            f"SELECT {_POINT} FROM points WHERE job = ? AND id > ?{more} ORDER BY id LIMIT ?",
            (*values, limit + 1),
        )
        return _page([Point(*row) for row in found], limit)

    def lines(self, id_: str, *, after: int = 0, limit: int = 1000) -> Page[Line]:
        """Lines of a job's log in their order."""
        found = self.database.read(
            f"SELECT {_LINE} FROM lines WHERE job = ? AND id > ? ORDER BY id LIMIT ?", (id_, after, limit + 1)
        )
        return _page([Line(*row) for row in found], limit)

    def last_lines(self, id_: str, *, limit: int = 1000) -> Page[Line]:
        """The newest lines of a job's log, in their order."""
        found = self.database.read(
            f"SELECT {_LINE} FROM lines WHERE job = ? ORDER BY id DESC LIMIT ?", (id_, limit)
        )
        return Page(items=tuple(Line(*row) for row in reversed(found)))

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
                ("points", _POINT, Point._make),
                ("lines", _LINE, Line._make),
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
    return _only(do.read(_ONE, (id_,)), id_)


def read_jobs(
    do: Snapshot | Database, where: str, values: Sequence[Any], *, order: str = "place"
) -> list[Job]:
    """Jobs by a condition on their row; unless said otherwise in the order of the queue."""
    return rows.to_jobs(do.read(_JOBS.format(where=where, order=order), values))


def marks(values: Sequence[Any]) -> str:
    """A `?` for each."""
    return ", ".join("?" * len(values))


def _only(found: list[tuple[Any, ...]], id_: str) -> Job:
    if not found:
        raise _missing(id_)
    [job] = rows.to_jobs(found)
    return job


def _missing(id_: str) -> NoSuchJob:
    return NoSuchJob(f"no job {id_!r}: `stoker jobs list` names those there are")


def _page(found: list[Any], limit: int) -> Page[Any]:
    items = tuple(found[:limit])
    return Page(items=items, next=items[-1].id if len(found) > limit else None)


def _like(part: str) -> str:
    """A part of a name, with what LIKE reads as a sign taken literally."""
    escaped = part.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


def _either(wanted: frozenset[State]) -> str:
    return f"is {', '.join(sorted(one.value for one in wanted))}"
