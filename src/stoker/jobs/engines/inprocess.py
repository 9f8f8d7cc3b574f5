"""Jobs as threads of this process, whose work is a function: for tests, and to try the service.

    def work(task: Task) -> None:
        for step in range(1, 4):
            task.tell(step, loss=1 / step)

    engine = InProcessEngine(store, work)

Leases, states, curves and lines are the real ones; a function that raises is a job that failed.
"""

import threading
import time
from collections.abc import Callable

from stoker.errors import LeaseLost
from stoker.jobs.engines.engine import Phase, Place, Running
from stoker.jobs.job import Attempt, Job
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Number, Orders, Progress, Report


class Task:
    """What the function is given: its job, and how to tell of it."""

    def __init__(self, holding: Holding, job: Job, attempt: Attempt) -> None:
        self.job = job
        self._holding = holding
        self._token = attempt.token
        self._log_bytes = 0
        # Set where the function is to end: the job was cancelled, or the engine is closed.
        self.stopped = threading.Event()
        self.cancelled = False

    def tell(self, step: int, *, steps: int | None = None, **values: float) -> None:
        """A step was made, with these numbers; `stopped` is set where the job was cancelled meanwhile."""
        now = time.time()
        points = [
            Number(name=f"train/{name}", step=step, value=value, t=now) for name, value in values.items()
        ]
        self._report(Report(points=points, progress=Progress(step=step, steps=steps)))

    def say(self, *lines: str) -> None:
        """Lines of the log."""
        before = self._log_bytes
        self._log_bytes += sum(len(line) + 1 for line in lines)
        told = [(time.time(), line) for line in lines]
        self._report(Report(lines=told, log_from=before, log_to=self._log_bytes))

    def _report(self, report: Report) -> None:
        self.follow(self._holding.report(self.job.id, self._token, report))

    def follow(self, orders: Orders) -> None:
        """What the store answers."""
        if orders.stop:
            self.cancelled = True
            self.stopped.set()


class InProcessEngine:
    """Each job a thread."""

    name = "inprocess"

    def __init__(self, store: Store, work: Callable[[Task], None], *, slots: int = 1) -> None:
        self._holding = Holding(store)
        self._work = work
        self._slots = slots
        self._threads: dict[str, tuple[threading.Thread, Task]] = {}

    def find_place(self, job: Job, running: list[Running]) -> Place | str:
        """By slots."""
        taken = len(running)
        return Place() if taken < self._slots else f"waits for a slot: {taken} of {self._slots} are taken"

    def start(self, job: Job, attempt: Attempt, place: Place) -> str:
        """Start the thread."""
        handle = f"{job.id}/{attempt.number}"
        task = Task(self._holding, job, attempt)
        thread = threading.Thread(target=self._run, args=(task, attempt, handle), daemon=True)
        self._threads[handle] = (thread, task)
        thread.start()
        return handle

    def poll(self, handle: str) -> Phase:
        """Whether the thread is there."""
        known = self._threads.get(handle)
        return "alive" if known is not None and known[0].is_alive() else "gone"

    def stop(self, handle: str, *, save: bool) -> None:
        """Set the task's `stopped`: a thread cannot be killed."""
        if handle in self._threads:
            self._threads[handle][1].stopped.set()

    def last_words(self, job: Job, attempt: Attempt) -> str | None:
        """What a thread raised is told by itself."""
        return None

    def adopt(self, handle: str) -> bool:
        """Threads of an earlier process are gone, and that is for this engine to say."""
        return True

    def wait(self) -> None:
        """Until all that was started has ended."""
        for thread, _ in self._threads.values():
            thread.join()

    def close(self) -> None:
        """Stop all threads, and wait for them; their jobs are queued again."""
        for _, task in self._threads.values():
            task.stopped.set()
        self.wait()

    def _run(self, task: Task, attempt: Attempt, handle: str) -> None:
        id_, token = task.job.id, attempt.token
        try:
            task.follow(self._holding.begin(id_, token, handle))
            try:
                self._work(task)
            except LeaseLost:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is how this job ended
                self._holding.finish(id_, token, State.FAILED, f"{type(error).__name__}: {error}")
                return
            if task.stopped.is_set() and not task.cancelled:
                self._holding.give_back(id_, token, "the engine was closed")
            else:
                self._holding.finish(id_, token, State.CANCELLED if task.cancelled else State.DONE)
        except LeaseLost:
            return  # the job is another's by now
