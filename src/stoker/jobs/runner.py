"""`python -m stoker.jobs.runner ID ATTEMPT TOKEN [HANDLE]`: the process that has a job, and trains nothing.

It starts the training as a child, tells the store what the child prints and measures, renews the lease, hears
that the job is to stop, and says how it ended. A child that hangs in C code, or dies by a signal, does not
take the heartbeat or the news of its end with it. Without torch, which takes seconds to import.

- A job's folder is locked while a runner has it: also where the store cannot be reached, none runs twice.
- A store that does not answer is asked again; the training goes on. A lease that is another's by now ends it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

from stoker.errors import DatabaseUnreachable, JobRefused, LeaseLost
from stoker.jobs import ending, leftovers, verdict
from stoker.jobs.folders import JobFolder
from stoker.jobs.identity import Identity
from stoker.jobs.job import Job
from stoker.jobs.lease import RENEWALS
from stoker.jobs.plan import Plan
from stoker.jobs.progress import Reading
from stoker.jobs.settings import VARIABLE, Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Report
from stoker.jobs.tail import Tail

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

# News are looked for, and told, so often.
_EVERY_S = 0.5
# A first verdict so long after the first step, the next after twice as long, and so on.
_FIRST_VERDICT_S = 30.0
# The doctor takes 2 to 3 s on a record. One that takes so long is ended: a job does not wait for it for ever.
_LONGEST_VERDICT_S = 120.0
# Between the first and the last process of a group that a signal is sent to; Ray kills all 3 s later.
_GROUP_S = 1.0
# Who is refused its lease exits with this.
FENCED = 75
# Cards that the engine gave to the runner.
GPUS = "STOKER_JOB_GPUS"


class Runner:
    """One attempt of one job."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        id_: str,
        attempt: int,
        token: int,
        handle: str | None = None,
        *,
        adopts: bool = False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._holding = Holding(store)
        self._id, self._attempt, self._token = id_, attempt, token
        # How the engine that started this process finds it; by its pid where the engine gave no other.
        self._handle = handle or str(_own_identity())
        self._folder = JobFolder(root=settings.root, id=id_)
        self._log = Tail(self._folder.log(attempt))
        self._reading = Reading(self._folder, attempt)
        # Whether this process has nothing below it but what belongs to the job.
        self._adopts = adopts
        self._child: subprocess.Popen[bytes] | None = None
        self._doctor: verdict.Examination | None = None
        self._verdict_at: float | None = None
        self._verdict_in = _FIRST_VERDICT_S
        # By whom it was told to stop: through the store (cancelled), or by a signal (it goes on later).
        self._cancelled = self._interrupted = False
        # When it is killed, once it was told to stop; and whether it was.
        self._kill_at: float | None = None
        self._is_killed = False
        self._told_at = 0.0
        # Read from the files, and not yet in the store.
        self._untold: Report | None = None

    def run(self) -> int:
        """From the lease to the end; the exit code."""
        before = signal.signal(signal.SIGTERM, self._hear)
        try:
            job = self._insist(lambda: self._store.job(self._id))
            with self._folder_to_itself():
                is_judged = self._run(job)
            if not is_judged:  # nobody waits for this, and whoever resumes the job may have its folder
                self._reach_verdict(is_held=False)
            return 0
        except LeaseLost as error:
            sys.stderr.write(f"stoker: {error}\n")
            return FENCED
        finally:
            if self._child is not None and self._child.poll() is None:
                self._child.kill()
                self._child.wait()
                self._end_leftovers(self._child)
            self._end_doctor()
            signal.signal(signal.SIGTERM, before)

    def _run(self, job: Job) -> bool:
        """From the first word to the last; whether there was a verdict before that."""
        self._cancelled = self._insist(lambda: self._holding.begin(self._id, self._token, self._handle)).stop
        if (refusal := self._refusal(job)) is not None:
            self._insist(lambda: self._holding.finish(self._id, self._token, State.FAILED, refusal))
            return True
        script = job.request.script is not None
        # Stopped before it began: there was nothing to save.
        began = not self._is_to_stop
        code = self._train(job) if began else ending.STOPPED
        ending.write_exit(
            self._folder,
            self._attempt,
            code,
            stopped=not began or self._kill_at is not None,
            signalled=began and self._was_signalled(code),
            script=script,
            killed_s=self._settings.grace_s if self._is_killed else None,
        )
        self._tell_rest()
        told = ending.read_exit(self._folder, self._attempt)
        assert told is not None
        end = ending.judge(told, self._folder.log(self._attempt), cancelled=self._cancelled)
        # Who waits for the end has the verdict with it; who cancelled a job does not wait for that.
        is_awaited = end.outcome in (State.DONE, State.FAILED)
        if is_awaited:
            self._reach_verdict(is_held=True)
        self._insist(lambda: ending.settle(self._holding, self._id, self._token, end))
        return is_awaited

    # --- before ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _folder_to_itself(self) -> Iterator[None]:
        """Inside, no other runner has the job's folder. One that lost its lease ends when it hears of it."""
        self._folder.attempt(self._attempt).mkdir(parents=True, exist_ok=True)
        self._folder.training.mkdir(exist_ok=True)
        with self._folder.lock.open("a") as lock:
            while sys.platform != "win32":
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._insist(lambda: self._holding.beat(self._id, self._token))
                    time.sleep(_EVERY_S)
            yield

    def _refusal(self, job: Job) -> str | None:
        """Why the job may not run: the server was started again since it was taken, and allows less."""
        try:
            self._settings.check(job.request)
        except JobRefused as error:
            return f"not allowed any more: {error}"
        return None

    def _train(self, job: Job) -> int:
        """The training from its start to its end; its exit code."""
        asked = job.request
        where = self._folder.attempt(self._attempt).absolute()
        plan = Plan(
            training=self._folder.training.absolute(),
            records=where / "records",
            workload=asked.workload,
            config=asked.config,
            script=asked.script,
            arguments=asked.arguments,
        )
        self._reading.begin(workload=asked.workload is not None)
        plan.write(where / "plan.json")
        # The store's address and its password are not the training's to know.
        kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
        shown = {"PYTHONUNBUFFERED": "1", "STOKER_JOB_FOLDER": str(plan.training), "STOKER_JOB": self._id}
        with self._folder.log(self._attempt).open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "stoker.jobs.work", str(where / "plan.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, **shown},
                process_group=None if sys.platform in ("linux", "win32") else 0,
            )
        code = self._attend(self._child)
        self._end_leftovers(self._child)
        return code

    def _end_leftovers(self, child: "subprocess.Popen[bytes]") -> None:
        """What it started does not outlive it: who follows has its slot and its cards."""
        self._end_doctor()
        leftovers.end(child, adopted=self._adopts)

    # --- while it trains --------------------------------------------------------------------------------

    def _attend(self, child: "subprocess.Popen[bytes]") -> int:
        """Until the training has ended; its exit code."""
        while True:
            try:
                return child.wait(_EVERY_S)
            except subprocess.TimeoutExpired:
                pass  # it goes on
            self._tell()
            self._stop_if_asked(child)
            self._look_at_verdict()
            if self._adopts:
                doctor = () if self._doctor is None else (self._doctor.process.pid,)
                leftovers.reap(own=(child.pid, *doctor))

    def _stop_if_asked(self, child: "subprocess.Popen[bytes]") -> None:
        """The step ends, the state is saved; after the grace it is killed."""
        if not self._is_to_stop or child.poll() is not None:
            return
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._settings.grace_s
            child.terminate()
            if self._cancelled:
                self._insist(lambda: self._holding.save(self._id, self._token))
        elif time.monotonic() > self._kill_at:
            self._is_killed = True
            child.kill()

    def _was_signalled(self, code: int) -> bool:
        """Whether an ended training was told to stop with all of its group, before this process could.

        As Ray does, or a machine that shuts down. Signals to a group come one by one: a quick training has
        ended before this process has its own. One that ended by itself as it was cancelled was told nothing.
        """
        if self._kill_at is not None:
            return False
        deadline = time.monotonic() + _GROUP_S
        looks_so = code in (ending.STOPPED, -signal.SIGTERM)
        while looks_so and not self._interrupted and time.monotonic() < deadline:
            time.sleep(_EVERY_S / 10)
        return self._interrupted

    def _tell(self) -> None:
        """What is new, and the heartbeat; it stays untold where the store does not answer."""
        if self._untold is None:
            self._untold = self._gather()
        if self._untold is None:
            return
        try:
            orders = self._holding.report(self._id, self._token, self._untold)
        except DatabaseUnreachable as error:
            sys.stderr.write(f"stoker: {error}; told again\n")
            return
        self._untold = None
        self._told_at = time.monotonic()
        # Where an earlier telling was heard and its answer lost, the store is further than we thought.
        self._log.position = orders.log_bytes
        self._cancelled = self._cancelled or orders.stop

    def _gather(self, *, rest: bool = False) -> Report | None:
        before = self._log.position
        try:
            lines = self._log.read(rest=rest)
        except OSError as error:
            if rest:  # how it ended is kept: the dispatcher tells that, and what was not read
                raise
            sys.stderr.write(f"stoker: the log cannot be read now: {error}; read again\n")
            lines = []
        points, progress = self._reading.read(None if self._child is None else self._child.pid)
        is_due = time.monotonic() - self._told_at > self._settings.lease_s / RENEWALS
        if not (lines or points or progress or is_due):
            return None
        now = time.time()
        return Report(
            points=points,
            lines=[(now, clean(line)) for line in lines],
            log_from=before,
            log_to=self._log.position,
            progress=progress,
            first_step=self._reading.first_step,
        )

    def _tell_rest(self) -> None:
        """All that the ended training left, however long the store does not answer."""
        while (left := self._untold or self._gather(rest=True)) is not None:
            self._untold = left
            self._tell()
            if self._untold is not None:
                time.sleep(_EVERY_S)

    @property
    def _is_to_stop(self) -> bool:
        return self._cancelled or self._interrupted

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True

    # --- the verdict --------------------------------------------------------------------------------------

    def _look_at_verdict(self) -> None:
        """From time to time the doctor looks at the record, beside the training."""
        now = time.monotonic()
        if self._doctor is not None:
            if self._doctor.process.poll() is not None:
                self._tell_verdict()
            elif now - self._doctor.began > _LONGEST_VERDICT_S:
                self._doctor.end()
                self._doctor = None
        elif self._verdict_at is None:
            if self._reading.has_steps:
                self._verdict_at = now + self._verdict_in
        elif now > self._verdict_at:
            self._doctor = self._begin_doctor()
            self._verdict_in *= 2
            self._verdict_at = now + self._verdict_in

    def _reach_verdict(self, *, is_held: bool) -> None:
        """The last one, of the whole record; the heartbeat goes on where the job is still held."""
        self._end_doctor()
        self._doctor = self._begin_doctor()
        if self._doctor is None:
            return
        deadline = self._doctor.began + _LONGEST_VERDICT_S
        while self._doctor.process.poll() is None and time.monotonic() < deadline:
            if is_held:
                self._tell()
            time.sleep(_EVERY_S / 5)
        if self._doctor.process.poll() is not None:
            self._tell_verdict()

    def _begin_doctor(self) -> verdict.Examination | None:
        """The doctor at work; None where there is nothing to see, or a machine that is full has no room."""
        try:
            return verdict.begin(self._folder.record(self._attempt))
        except OSError as error:  # no process, memory or file for it: the training needs none of its advice
            sys.stderr.write(f"stoker: the doctor cannot be started now: {error}; the training goes on\n")
            return None

    def _end_doctor(self) -> None:
        if self._doctor is not None:
            self._doctor.end()
            self._doctor = None

    def _tell_verdict(self) -> None:
        assert self._doctor is not None
        found = self._doctor.read()
        self._doctor = None
        if found is not None:
            self._insist(lambda: self._holding.judge(self._id, self._token, found))

    def _insist(self, ask: Callable[[], T]) -> T:
        """Ask the store until it answers: a training is not ended by a database that is away for a while."""
        while True:
            try:
                return ask()
            except DatabaseUnreachable as error:
                sys.stderr.write(f"stoker: {error}; asked again\n")
                time.sleep(_EVERY_S)


def clean(text: str) -> str:
    """A line as every store can hold it and a page show it: no NUL, and of a progress bar its last state.

    >>> clean("10%\\r50%\\r100%")
    '100%'
    """
    return text.rstrip("\r").rpartition("\r")[2].replace("\0", "\ufffd")


def _own_identity() -> Identity:
    given = os.environ.get(GPUS, "")
    return Identity.of(os.getpid(), tuple(given.split(",")) if given else ())


def main(words: list[str]) -> int:
    """Run an attempt; the exit code."""
    id_, attempt, token, *handle = words
    settings = Settings.from_environment(os.environ)
    while True:
        try:
            store = Store.open(settings.store_url)
            break
        except DatabaseUnreachable as error:
            sys.stderr.write(f"stoker: {error}; asked again\n")
            time.sleep(_EVERY_S)
    try:
        adopts = leftovers.adopt()
        return Runner(settings, store, id_, int(attempt), int(token), *handle, adopts=adopts).run()
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
