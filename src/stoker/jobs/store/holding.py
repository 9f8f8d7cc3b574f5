"""The store as those see it who run jobs: the dispatcher claims, the runner writes; each by the job's token.

holding = Holding(store)
attempt = holding.claim(job.id, engine="local")          # starting
holding.begin(job.id, attempt.token, handle)             # running: the process speaks for the first time
orders = holding.report(job.id, attempt.token, Report(points=…, lines=…))   # also the heartbeat
holding.finish(job.id, attempt.token, State.DONE)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.errors import LeaseLost
from stoker.facts.words import size
from stoker.jobs import states
from stoker.jobs.job import Attempt, Job
from stoker.jobs.lease import Lease, goes_on
from stoker.jobs.states import State
from stoker.jobs.store import rows
from stoker.jobs.store.database import Transaction
from stoker.jobs.store.store import Store, marks, read_job, read_jobs

_FIRST = "(SELECT MIN(place) FROM jobs WHERE state = ? AND needs_card = {line})"
# Of an attempt's log; its file keeps the rest. A line costs the store some 70 bytes and its text.
MOST_LINES, MOST_LOG_BYTES = 100_000, 64 << 20
# Said to be told of a log of which no more is heard: behind the end of every file.
_ALL_BYTES = (1 << 63) - 1
_HEADS = f"state = ? AND place IN ({_FIRST.format(line=0)}, {_FIRST.format(line=1)})"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A point of a curve, as it was measured."""

    name: str
    step: int
    value: float
    t: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is."""

    step: int | None = None
    steps: int | None = None
    rate: float | None = None
    eta_s: float | None = None
    phases: Mapping[str, float] | None = None
    gpu: Mapping[str, Any] | None = None
    memory: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a runner has to tell: all of it is written at once, or nothing.

    `lines` are those of the log from byte `log_from` to `log_to`; told before, they are left out.
    """

    points: Sequence[Number] = ()
    lines: Sequence[tuple[float, str]] = ()
    log_from: int = 0
    log_to: int = 0
    progress: Progress | None = None
    first_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What a runner is told in return."""

    stop: bool
    # How much of its log is told; more than there is where no more is to be told.
    log_bytes: int


@dataclass(frozen=True, kw_only=True)
class Held:
    """A job that a process has, with its lease and its newest attempt."""

    job: Job
    lease: Lease

    @property
    def attempt(self) -> Attempt:
        """The one that runs."""
        return self.job.attempts[-1]


class Holding:
    """Claims, heartbeats, reports, ends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    # --- the dispatcher's ---------------------------------------------------------------------------

    def heads(self) -> list[Job]:
        """Who is next: the first of those that need a card, and of those that need none; in their order."""
        return read_jobs(self._database, _HEADS, (State.QUEUED.value,) * 3)

    def held(self) -> list[Held]:
        """Jobs that a process has, or should have."""
        wanted = [state.value for state in states.HELD]
        with self._database.snapshot() as do:
            found = do.read(f"SELECT id, token, beat FROM jobs WHERE state IN ({marks(wanted)})", wanted)
            if not found:
                return []
            leases = {id_: Lease(job=id_, token=token, beat=beat) for id_, token, beat in found}
            jobs = read_jobs(do, f"id IN ({marks(list(leases))})", list(leases))
        return [Held(job=job, lease=leases[job.id]) for job in jobs]

    def claim(self, id_: str, *, engine: str) -> Attempt | None:
        """Take a queued job: it is starting, with a new token. None where it is no longer queued."""
        with self._database.transaction() as do:
            if do.read("SELECT state FROM jobs WHERE id = ?", (id_,)) != [(State.QUEUED.value,)]:
                return None
            number = len(read_job(do, id_).attempts) + 1
            [(token,)] = do.read(
                "UPDATE jobs SET token = token + 1, beat = beat + 1, attempt = ? WHERE id = ? "
                "RETURNING token",
                (number, id_),
            )
            do.write(
                "INSERT INTO attempts (job, number, token, engine, created) VALUES (?, ?, ?, ?, ?)",
                (id_, number, token, engine, self._store.clock()),
            )
            self._store.move(do, read_job(do, id_), State.STARTING)
            return read_job(do, id_).attempts[-1]

    def tell_wait(self, id_: str, why: str | None) -> None:
        """Say why a queued job still waits; an event only where that is new."""
        with self._database.transaction() as do:
            changed = do.write(
                "UPDATE jobs SET waits_for = ? WHERE id = ? AND state = ? AND waits_for IS DISTINCT FROM ?",
                (why, id_, State.QUEUED.value, why),
            )
            if changed:
                self._store.note(do, id_, "waits", {"for": why})

    def set_handle(self, id_: str, token: int, handle: str) -> None:
        """How the engine finds the process again."""
        with self._database.transaction() as do:
            job = self._own(do, id_, token)
            self._write_handle(do, job, handle)

    def refuse(self, id_: str, token: int, error: str) -> None:
        """The engine could not start it: it failed, and why."""
        self._end(id_, token, State.FAILED, error)

    def put_back(self, id_: str, token: int, why: str) -> None:
        """Nothing was started for it after all: queued as it stood, without this attempt, and why it waits.

        Cancelled where that was asked for meanwhile. A process that was started after all has an old token
        then, or keeps the job where it has spoken already.
        """
        with self._database.transaction() as do:
            if self._own(do, id_, token).state is not State.STARTING:
                return
            do.write("DELETE FROM attempts WHERE job = ? AND token = ?", (id_, token))
            job = read_job(do, id_)
            do.write("UPDATE jobs SET attempt = ? WHERE id = ?", (len(job.attempts), id_))
            if job.cancel_asked:
                self._store.move(do, job, State.CANCELLED)
                return
            self._store.move(do, job, State.QUEUED)
            do.write("UPDATE jobs SET waits_for = ? WHERE id = ?", (why, id_))
            self._store.note(do, id_, "waits", {"for": why})

    def lose(self, lease: Lease, error: str) -> State | None:
        """A job whose process is gone: queued again, or left lost. None where it spoke meanwhile."""
        with self._database.transaction() as do:
            found = do.read(
                "SELECT losses FROM jobs WHERE id = ? AND token = ? AND beat = ?",
                (lease.job, lease.token, lease.beat),
            )
            if not found:
                return None
            job = read_job(do, lease.job)
            if job.state not in states.HELD:
                return None
            losses = int(found[0][0]) + 1
            # A new token at once: a process that lives after all is refused from now on.
            do.write(
                "UPDATE jobs SET token = token + 1, losses = ?, rate = NULL, eta_s = NULL WHERE id = ?",
                (losses, lease.job),
            )
            unsaved = f"{error}, before it was seen to save; resume goes on from the last checkpoint"
            began = job.attempts[-1].started is not None
            self._requeue(do, job, error, again=goes_on(losses), unsaved=unsaved if began else None)
            return read_job(do, lease.job).state

    def deleted(self, *, after: int = 0) -> tuple[list[str], int]:
        """Jobs that were deleted since, and the last number looked at."""
        with self._database.snapshot() as do:
            [(last,)] = do.read("SELECT last FROM clock")
            if last == after:
                return [], after
            found = do.read("SELECT job FROM events WHERE kind = 'deleted' AND id > ? ORDER BY id", (after,))
        return [job for (job,) in found], int(last)

    # --- the runner's -------------------------------------------------------------------------------

    def begin(self, id_: str, token: int, handle: str) -> Orders:
        """The process is there, and has the job's folder to itself."""
        with self._database.transaction() as do:
            job = self._own(do, id_, token)
            now = self._store.clock()
            self._write_handle(do, job, handle)
            do.write("UPDATE attempts SET started = ? WHERE job = ? AND token = ?", (now, id_, token))
            do.write("UPDATE jobs SET started = COALESCE(started, ?) WHERE id = ?", (now, id_))
            if job.state is State.STARTING:
                self._store.move(do, job, State.RUNNING)
            return self._beat(do, id_, token)

    def report(self, id_: str, token: int, report: Report) -> Orders:
        """Write what there is to tell, and the heartbeat."""
        with self._database.transaction() as do:
            job = self._own(do, id_, token)
            self._add_points(do, id_, report.points)
            self._add_lines(do, job, token, report)
            if report.first_step is not None:
                do.write(
                    "UPDATE attempts SET first_step = ? WHERE job = ? AND token = ?",
                    (report.first_step, id_, token),
                )
            if report.progress is not None:
                self._add_progress(do, job, token, report.progress)
            return self._beat(do, id_, token)

    def beat(self, id_: str, token: int) -> Orders:
        """The heartbeat alone."""
        with self._database.transaction() as do:
            self._own(do, id_, token)
            return self._beat(do, id_, token)

    def save(self, id_: str, token: int) -> None:
        """It was told to stop, and saves."""
        with self._database.transaction() as do:
            job = self._own(do, id_, token)
            if job.state is not State.SAVING:
                self._store.move(do, job, State.SAVING)

    def finish(self, id_: str, token: int, outcome: State, error: str | None = None) -> None:
        """The end of a job: done, failed or cancelled."""
        self._end(id_, token, outcome, error)

    def give_back(self, id_: str, token: int, why: str, *, is_loss: bool = False) -> None:
        """It was told to stop by no one who asked for its end: it is queued again, where it stood.

        One that ended before its runner could have it stop `is_loss`: where that comes again and again
        without a step between, as where its script signals its own group, it is left lost.
        """
        with self._database.transaction() as do:
            job = self._own(do, id_, token)
            [(losses,)] = do.read(
                "UPDATE jobs SET losses = losses + ?, rate = NULL, eta_s = NULL WHERE id = ? "
                "RETURNING losses",
                (int(is_loss), id_),
            )
            self._requeue(do, job, why, again=not is_loss or goes_on(losses))

    def judge(self, id_: str, token: int, verdict: Mapping[str, Any]) -> None:
        """What the observer's record tells; also after the end, unless another attempt has begun."""
        with self._database.transaction() as do:
            changed = do.write(
                "UPDATE jobs SET verdict = ? WHERE id = ? AND token = ?", (rows.to_text(verdict), id_, token)
            )
            if changed:
                self._store.note(do, id_, "verdict", dict(verdict))

    # --- inside a transaction -----------------------------------------------------------------------

    def _own(self, do: Transaction, id_: str, token: int) -> Job:
        """The job, where the token is still its own and it has not ended; LeaseLost."""
        found = do.read("SELECT token, state FROM jobs WHERE id = ?", (id_,))
        if not found or found[0][0] != token or State(found[0][1]) not in states.HELD:
            told = "is gone" if not found else f"is {found[0][1]}, with token {found[0][0]}"
            raise LeaseLost(f"job {id_} {told}, and this process has token {token}: it writes nothing more")
        return read_job(do, id_)

    def _beat(self, do: Transaction, id_: str, token: int) -> Orders:
        [(stop,)] = do.read("UPDATE jobs SET beat = beat + 1 WHERE id = ? RETURNING cancel_asked", (id_,))
        [(told,)] = do.read("SELECT log_bytes FROM attempts WHERE job = ? AND token = ?", (id_, token))
        return Orders(stop=bool(stop), log_bytes=told)

    def _write_handle(self, do: Transaction, job: Job, handle: str) -> None:
        do.write(
            "UPDATE attempts SET handle = ? WHERE job = ? AND number = ?",
            (handle, job.id, job.attempts[-1].number),
        )

    def _add_points(self, do: Transaction, id_: str, points: Sequence[Number]) -> None:
        """A point of a step that is there is replaced; one that is there as it is stays, with its id."""
        do.write_many(
            "INSERT INTO points (job, name, step, value, t, id) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (job, name, step) DO UPDATE SET value = excluded.value, t = excluded.t, "
            "id = excluded.id WHERE points.value <> excluded.value OR points.t <> excluded.t",
            [(id_, one.name, one.step, one.value, one.t, do.next()) for one in points],
        )

    def _add_lines(self, do: Transaction, job: Job, token: int, report: Report) -> None:
        if report.log_to == report.log_from:
            return
        attempt = job.attempts[-1].number
        [(before,)] = do.read("SELECT COUNT(*) FROM lines WHERE job = ? AND attempt = ?", (job.id, attempt))
        is_full = before + len(report.lines) > MOST_LINES or report.log_to > MOST_LOG_BYTES
        changed = do.write(
            "UPDATE attempts SET log_bytes = ? WHERE job = ? AND token = ? AND log_bytes = ?",
            (_ALL_BYTES if is_full else report.log_to, job.id, token, report.log_from),
        )
        if not changed:  # told before; the orders say how far
            return
        lines = list(report.lines)
        if is_full:
            why = f"stoker: this attempt printed over {MOST_LINES:,} lines or {size(MOST_LOG_BYTES)}"
            rest = f"what follows is in attempt-{attempt}/log.txt of the job's folder alone"
            lines = [*lines[: MOST_LINES - before], (self._store.clock(), f"{why}: {rest}")]
        do.write_many(
            "INSERT INTO lines (id, job, attempt, t, text) VALUES (?, ?, ?, ?, ?)",
            [(do.next(), job.id, attempt, t, text) for t, text in lines],
        )

    def _add_progress(self, do: Transaction, job: Job, token: int, made: Progress) -> None:
        texts = [rows.to_text(one) for one in (made.phases, made.gpu, made.memory)]
        do.write(
            "UPDATE jobs SET step = COALESCE(?, step), steps = COALESCE(?, steps), rate = COALESCE(?, rate), "
            "eta_s = COALESCE(?, eta_s), phases = COALESCE(?, phases), gpu = COALESCE(?, gpu), "
            "memory = COALESCE(?, memory) WHERE id = ?",
            (made.step, made.steps, made.rate, made.eta_s, *texts, job.id),
        )
        if made.step is not None:
            do.write(
                "UPDATE attempts SET last_step = ? WHERE job = ? AND token = ?", (made.step, job.id, token)
            )
            if made.step != job.step:
                do.write("UPDATE jobs SET losses = 0 WHERE id = ?", (job.id,))
        # Of these only the newest is news.
        do.write("DELETE FROM events WHERE job = ? AND kind = 'progress'", (job.id,))
        now = read_job(do, job.id)
        body = {
            name: getattr(now, name) for name in ("step", "steps", "rate", "eta_s", "phases", "gpu", "memory")
        }
        self._store.note(do, job.id, "progress", body)

    def _end(self, id_: str, token: int, outcome: State, error: str | None) -> None:
        with self._database.transaction() as do:
            job = self._own(do, id_, token)
            self._close_attempt(do, job, outcome, error)
            do.write("UPDATE jobs SET eta_s = NULL, losses = 0 WHERE id = ?", (id_,))
            if (
                outcome is State.CANCELLED and job.state is State.RUNNING
            ):  # it ended before it was seen to save
                self._store.move(do, job, State.SAVING)
                job = read_job(do, id_)
            self._store.move(do, job, outcome, error=error)

    def _requeue(
        self, do: Transaction, job: Job, why: str, *, again: bool = True, unsaved: str | None = None
    ) -> None:
        """Lost, and from there to the queue, at its old place; cancelled where that was asked for."""
        self._close_attempt(do, job, State.LOST, why)
        self._store.move(do, job, State.LOST, error=why)
        lost = read_job(do, job.id)
        if job.cancel_asked:
            self._store.move(do, lost, State.CANCELLED, error=unsaved)
        elif again:
            self._store.move(do, lost, State.QUEUED)

    def _close_attempt(self, do: Transaction, job: Job, outcome: State, error: str | None) -> None:
        do.write(
            "UPDATE attempts SET ended = ?, outcome = ?, error = ? WHERE job = ? AND number = ?",
            (self._store.clock(), outcome.value, error, job.id, job.attempts[-1].number),
        )
