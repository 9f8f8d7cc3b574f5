"""`python -m stoker.jobs.dispatcher`: from the queue to the engines, and back to the queue what was lost.

A process of its own beside the server, so that no request waits for it. It keeps nothing that is not in the
store or in a job's folder: killed at any moment, the next one finds the runners that go on, settles those
that ended, and queues those that are gone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from stoker.errors import DatabaseUnreachable, EngineAway, EngineFailed, LeaseLost, StokerError
from stoker.jobs import ending
from stoker.jobs.engines.engine import Engine, Place, Running
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Attempt, Job
from stoker.jobs.lease import Heartbeats
from stoker.jobs.progress import Reading
from stoker.jobs.runner import clean
from stoker.jobs.settings import Settings
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Held, Holding, Report
from stoker.jobs.tail import Tail

if sys.platform != "win32":
    import fcntl

_EVERY_S = 0.25
# A runner ends its training by itself after the grace; so much later it is ended with it.
_PATIENCE_S = 10.0
# Why a job waits has figures that change with every look ("5.31 GiB are free"): told so often, not each time.
_WAITS_EVERY_S = 5.0
_TIDY_EVERY_S = 1.0
# An engine that could start nothing is asked again after so long, and later the longer it lasts.
_AWAY_S, _LONGEST_AWAY_S = 0.5, 30.0


class Dispatcher:
    """One pass after the other; each looks at everything."""

    def __init__(
        self, settings: Settings, store: Store, engine: Engine, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._store = store
        self._holding = Holding(store)
        self._engine = engine
        self._clock = clock
        self._heartbeats = Heartbeats(settings.lease_s)
        self._asked: dict[str, float] = {}
        # When it was last said of the first of each line why it waits.
        self._told: dict[str, float] = {}
        # What went wrong with a job when it was last looked at.
        self._troubles: dict[str, str] = {}
        self._start_at, self._away_s = float("-inf"), _AWAY_S
        self._deleted = 0
        self._unremoved: set[str] = set()
        self._tidied = clock()

    def run(self, until: Callable[[], bool], wait: Callable[[float], object] = time.sleep) -> None:
        """Pass after pass, until told otherwise. A store that does not answer is asked again."""
        while not until():
            try:
                self.look()
            except DatabaseUnreachable as error:
                sys.stderr.write(f"stoker: {error}; asked again\n")
            wait(_EVERY_S)

    def look(self) -> None:
        """One pass: who runs, who ended, who is lost, who is next, what is to be removed."""
        for held in self._holding.held():
            if self._take_care(held.job.id, partial(self._attend, held)) is None:
                self._troubles.pop(held.job.id, None)
        held_now = {one.lease: one for one in self._holding.held()}
        for lease in self._heartbeats.watch(held_now, self._clock()):
            why = "; ".join(filter(None, ("no heartbeat", self._troubles.get(lease.job))))
            self._take_care(lease.job, partial(self._lose, held_now[lease], why))
        self._start_next()
        self._remove_deleted()
        self._tidy()
        known = {lease.job for lease in held_now} | set(self._told)
        self._troubles = {id_: text for id_, text in self._troubles.items() if id_ in known}

    def _take_care(self, id_: str, do: Callable[[], None]) -> str | None:
        """Do something for a job: what goes wrong is written down, and costs that job alone; what it was."""
        try:
            do()
        except (DatabaseUnreachable, LeaseLost):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs are not to wait for it
            return self._tell_trouble(id_, error)
        return None

    def _tell_trouble(self, id_: str, error: Exception) -> str:
        """In the log, once for as long as it is the same."""
        text = f"{type(error).__name__}: {error}"
        if self._troubles.get(id_) != text:
            self._troubles[id_] = text
            shown = "".join(traceback.format_exception(error))
            sys.stderr.write(f"stoker: job {id_}: {text}; the other jobs go on\n{shown}")
        return text

    # --- who runs ---------------------------------------------------------------------------------------

    def _attend(self, held: Held) -> None:
        handle = held.attempt.handle
        # Without a handle its process either speaks soon, or was never started: the heartbeat tells.
        if handle is None or not self._is_ours(held):
            return
        phase = self._engine.poll(handle)
        if phase == "gone":
            self._settle(held)
        elif phase == "pending" and held.job.cancel_asked:
            self._kill(handle)  # there is nothing to save yet
        elif phase == "pending":
            with contextlib.suppress(LeaseLost):  # it ended, or was cancelled, meanwhile
                self._holding.beat(held.job.id, held.lease.token)
        elif held.job.cancel_asked:
            self._press(held, handle)

    def _press(self, held: Held, handle: str) -> None:
        """A runner hears from the store that it is to stop; one that does not is killed in the end."""
        since = self._asked.setdefault(handle, self._clock())
        if self._clock() - since > self._settings.grace_s + _PATIENCE_S:
            self._kill(handle)

    def _kill(self, handle: str) -> None:
        """An engine that cannot is asked again in the next pass; without a lease a runner ends by itself."""
        try:
            self._engine.stop(handle, save=False)
        except EngineFailed as error:
            sys.stderr.write(f"stoker: {error}\n")

    def _settle(self, held: Held) -> None:
        """A runner that is gone: how its training ended, if it did, is in its folder."""
        folder, number = JobFolder(root=self._settings.root, id=held.job.id), held.attempt.number
        self._asked.pop(held.attempt.handle or "", None)
        try:
            told = ending.read_exit(folder, number)
            end = (
                None
                if told is None
                else ending.judge(told, folder.log(number), cancelled=held.job.cancel_asked)
            )
        except (ValueError, KeyError, TypeError) as error:
            self._lose(held, f"its process is gone, and exit.json is not understood: {error!r}")
            return
        if end is None:
            said = self._engine.last_words(held.job, held.attempt)
            self._lose(held, "its process is gone" + (f"; it last said: {said}" if said else ""))
            return
        try:
            self._take_care(held.job.id, lambda: self._tell_rest(held, folder))
            ending.settle(self._holding, held.job.id, held.lease.token, end)
        except LeaseLost:
            pass  # it had told of its end itself, just before

    def _lose(self, held: Held, why: str) -> None:
        """Queue it again. What it printed last is told first: it may say why."""
        self._take_care(held.job.id, lambda: self._kill_runner(held))
        folder = JobFolder(root=self._settings.root, id=held.job.id)
        try:
            unread = self._take_care(held.job.id, lambda: self._tell_rest(held, folder))
        except LeaseLost:
            return
        if unread is not None:
            why = f"{why}; what it left was not read ({unread})"
        # That was a heartbeat too, so the lease is the one after it; none where the job has ended meanwhile.
        for lease in [one.lease for one in self._holding.held() if one.job.id == held.job.id]:
            if lease.token == held.lease.token:
                self._holding.lose(lease, why)

    def _kill_runner(self, held: Held) -> None:
        handle = held.attempt.handle
        if handle is not None and self._is_ours(held):
            self._kill(handle)

    def _tell_rest(self, held: Held, folder: JobFolder) -> None:
        """What a runner that is gone left untold."""
        id_, token, number = held.job.id, held.lease.token, held.attempt.number
        position = self._holding.beat(id_, token).log_bytes
        log = Tail(folder.log(number), position)
        is_workload = held.job.request.workload is not None
        reading = Reading(folder, number, workload=is_workload)
        # Before its plan was written, what is in the folder is an earlier attempt's.
        has_begun = not is_workload or folder.plan(number).exists()
        while True:
            before = log.position
            lines = [(time.time(), clean(line)) for line in log.read(rest=True)]
            points, progress = reading.read(None) if has_begun else ([], None)
            if not (lines or points):
                return
            report = Report(
                points=points, lines=lines, log_from=before, log_to=log.position, progress=progress
            )
            self._holding.report(id_, token, report)

    def _is_ours(self, held: Held) -> bool:
        handle = held.attempt.handle
        return handle is not None and held.attempt.engine == self._engine.name and self._engine.adopt(handle)

    # --- who is next --------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        """In the order of the queue. A job that needs a card is overtaken only by such that need none."""
        if self._clock() < self._start_at:  # the engine can start nothing for now
            return
        blocked: set[bool] = set()
        told: dict[str, float] = {}
        while heads := [job for job in self._holding.heads() if (job.request.gpus > 0) not in blocked]:
            job = heads[0]
            place = self._find_place(job)
            if isinstance(place, str):
                blocked.add(job.request.gpus > 0)
                told[job.id] = self._tell_wait(job, place)
                continue
            attempt = self._holding.claim(job.id, engine=self._engine.name)
            if attempt is not None and not self._start(job, attempt, place):
                told[job.id] = self._clock()
                break
        self._told = told

    def _find_place(self, job: Job) -> Place | str:
        """A place, or why there is none; an engine that cannot say has none for now."""
        running = [
            Running(job=one.job, handle=one.attempt.handle, engine=one.attempt.engine)
            for one in self._holding.held()
        ]
        try:
            return self._engine.find_place(job, running)
        except Exception as error:  # noqa: BLE001 - a driver that does not answer is no reason to end
            return f"waits for its engine: {self._tell_trouble(job.id, error)}"

    def _start(self, job: Job, attempt: Attempt, place: Place) -> bool:
        """Start a job, or have it fail; False where the engine is away, and nobody can be started for now."""
        try:
            handle = self._engine.start(job, attempt, place)
        except EngineAway as error:
            self._start_at = self._clock() + self._away_s
            self._away_s = min(2 * self._away_s, _LONGEST_AWAY_S)
            sys.stderr.write(f"stoker: {error}\n")
            with contextlib.suppress(LeaseLost):  # it was started after all, and so quick that it has ended
                self._holding.put_back(job.id, attempt.token, str(error))
            return False
        except EngineFailed as error:
            self._refuse(job, attempt, str(error))
            return True
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's end and no other's
            text = self._tell_trouble(job.id, error)
            self._refuse(job, attempt, f"the engine could not start it: {text}")
            return True
        self._away_s = _AWAY_S
        with contextlib.suppress(LeaseLost):  # it was so quick that it has ended
            self._holding.set_handle(job.id, attempt.token, handle)
        return True

    def _refuse(self, job: Job, attempt: Attempt, why: str) -> None:
        with contextlib.suppress(LeaseLost):  # it was started after all, and so quick that it has ended
            self._holding.refuse(job.id, attempt.token, why)

    def _tell_wait(self, job: Job, why: str) -> float:
        """Say why the first of a line waits; when that was last said. Its figures may change all the time."""
        now = self._clock()
        last = self._told.get(job.id)
        if last is not None and (now - last < _WAITS_EVERY_S or job.waits_for == why):
            return last
        self._holding.tell_wait(job.id, why)
        return now

    def _remove_deleted(self) -> None:
        """The folders of jobs that are gone. One that cannot be removed now is tried again in each pass."""
        ids, self._deleted = self._holding.deleted(after=self._deleted)
        before, self._unremoved = self._unremoved, set()
        for id_ in (*before, *ids):
            try:
                JobFolder(root=self._settings.root, id=id_).remove()
            except OSError as error:
                self._unremoved.add(id_)
                if id_ not in before:
                    sys.stderr.write(f"stoker: cannot remove the files of job {id_} yet: {error}\n")

    def _tidy(self) -> None:
        """Here, where nobody waits for it."""
        if self._clock() - self._tidied >= _TIDY_EVERY_S:
            self._tidied = self._clock()
            self._store.database.tidy()


# --- the process ------------------------------------------------------------------------------------------


def start(settings: Settings) -> "subprocess.Popen[bytes]":
    """Start a dispatcher beside this process; it ends when this process does, by whatever death."""
    settings.root.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "stoker.jobs.dispatcher"],
        stdin=subprocess.PIPE,
        env={**os.environ, **settings.to_environment()},
    )


def open_engine(settings: Settings) -> Engine:
    """The engine that the settings name."""
    if settings.engine == "ray":
        from stoker.jobs.engines.ray import RayEngine

        return RayEngine(settings)
    from stoker.jobs.engines.local import LocalEngine

    return LocalEngine(settings)


@contextlib.contextmanager
def _alone(path: Path, until: threading.Event) -> Iterator[bool]:
    """Inside, no other dispatcher works in the folder; whether that could be had before the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        while sys.platform != "win32" and not until.is_set():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                until.wait(_EVERY_S)
        yield not until.is_set()


def main() -> int:
    """Dispatch until standard input ends, at whose other end the server is; the exit code."""
    settings = Settings.from_environment(os.environ)
    end = threading.Event()
    # Ctrl-C in a terminal reaches all of its processes: it is the server's to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: end.set())

    def listen() -> None:
        # Past the buffer, whose lock this thread would hold as the interpreter ends: that is fatal to it.
        while os.read(sys.stdin.fileno(), 1):
            pass
        end.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        store = Store.open(settings.store_url)
        engine = open_engine(settings)
    except StokerError as error:  # a database or a cluster that is not there: the server tries again later
        sys.stderr.write(f"stoker: {error}\n")
        return error.exit_code
    with _alone(settings.root / "dispatcher.lock", end) as alone:
        if alone:
            Dispatcher(settings, store, engine).run(end.is_set, end.wait)
    engine.close()
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
