"""A jobs server in a process of its own, to be harmed, and its jobs, counted."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from stoker.bench.children import free_port
from stoker.bench.faults.judge import Ended
from stoker.bench.faults.scene import Child, Fell, Scene
from stoker.errors import JobsUnreachable
from stoker.jobs import Client, Job
from stoker.jobs.folders import JobFolder
from stoker.jobs.states import RESUMABLE, State

JOB_SCRIPTS = Path(__file__).parent / "job_scripts"
# Steps that a job counts, seconds for each, and steps between its savings.
STEPS, EACH_S, SAVED_EVERY = 60, 0.05, 5
T = TypeVar("T")


class Server:
    """`stoker serve` on a port of its own, which stays when it is started again."""

    def __init__(
        self,
        scene: Scene,
        *,
        root: Path | None = None,
        store: str | None = None,
        scripts: Path = JOB_SCRIPTS,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self._scene, self._env, self._prefix = scene, env, prefix
        self.root = scene.folder / "jobs" if root is None else root
        port = free_port()
        self._words = ["serve", "--port", str(port), "--json", "--root", str(self.root), "--slots", "2"]
        self._words += ["--scripts", str(scripts), "--data", str(scene.folder)]
        self._words += [] if store is None else ["--store", store]
        self.client = Client(f"http://127.0.0.1:{port}")

    def begin(self) -> Child:
        """Start it; it may not listen yet, or never."""
        return self._scene.stoker(*self._words, env=self._env, prefix=self._prefix)

    def start(self) -> Child:
        """Start it, and wait until it answers."""
        child = self.begin()
        if not self._scene.until(lambda: bool(child.told.strip()), child):
            raise Fell(child.ended())
        return child

    def stop(self, child: Child) -> Ended:
        """End it in order."""
        child.send(signal.SIGTERM)
        return child.ended()

    def submit(self, number: int, *, steps: int = STEPS) -> Job:
        """Ask for a job that counts; asked again after a crash, it is the same one."""
        words = [str(steps), str(EACH_S), str(SAVED_EVERY)]
        return self.asked(
            lambda: self.client.submit(
                script="count.py", arguments=words, name=f"job {number}", key=f"key {number}"
            )
        )

    def asked(self, ask: Callable[[], T]) -> T:
        """What the server answers, once it does."""
        deadline = time.monotonic() + self._scene.patience_s
        while True:
            try:
                return ask()
            except JobsUnreachable as error:
                if time.monotonic() > deadline:
                    raise Fell(Ended(code=None, said=str(error))) from error
                time.sleep(0.1)

    def points(self, job: Job) -> int:
        """How far a job's curve is."""
        return len(self.asked(job.metrics).get("train/loss", ()))

    def finish(self, jobs: Sequence[Job]) -> bool:
        """Wait until all are done; those that failed or were lost are resumed, as a person would."""
        deadline = time.monotonic() + self._scene.patience_s
        while True:
            states = [self.asked(job.refresh).state for job in jobs]
            if all(state is State.DONE for state in states):
                return True
            if time.monotonic() > deadline:
                return False
            for job, state in zip(jobs, states, strict=True):
                if state in RESUMABLE:
                    self.asked(job.resume)
            time.sleep(0.1)

    def counts(self, jobs: Sequence[Job], *, steps: int = STEPS) -> dict[str, tuple[int, int]]:
        """Jobs that are done, with one whole curve, each line of their logs once, never two at a time."""
        known = {job.id: job for job in self.asked(lambda: self.client.jobs(limit=1000))}
        done = curves = logs = alone = 0
        for job in jobs:
            told = known.get(job.id)
            if told is None or told.state is not State.DONE:
                continue
            done += 1
            curve = [step for step, _ in self.asked(job.metrics).get("train/loss", ())]
            curves += curve == list(range(1, steps + 1))
            folder = JobFolder(root=self.root, id=job.id)
            alone += not (folder.training / "twice").exists()
            printed = [line for path in _logs(folder) for line in path.read_text().splitlines()]
            logs += list(self.asked(lambda job=job: list(job.logs()))) == printed  # type: ignore[misc]
        return {
            "jobs done": (len(jobs), done),
            "curves with each step once": (len(jobs), curves),
            "logs with each line once": (len(jobs), logs),
            "jobs never run twice at a time": (len(jobs), alone),
        }


def _logs(folder: JobFolder) -> list[Path]:
    """Those of its attempts, in their order."""
    found = list(folder.path.glob("attempt-*/log.txt"))
    return sorted(found, key=lambda path: int(path.parent.name.removeprefix("attempt-")))
