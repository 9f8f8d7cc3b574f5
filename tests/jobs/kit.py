"""What the tests of jobs share: a service in a folder, its dispatcher a real process; waiting for a state."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from stoker.jobs import dispatcher
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Job, Request
from stoker.jobs.settings import Settings
from stoker.jobs.states import ENDED, State
from stoker.jobs.store import Store

SCRIPTS = Path(__file__).parent / "scripts"
COUNT = str(SCRIPTS / "count.py")
# Far longer than anything takes: a test that waits so long has failed.
PATIENCE_S = 120.0


def counting(steps: int = 5, seconds: float = 0.01, every: int = 1, name: str = "count") -> Request:
    """A script that counts."""
    return Request(name=name, script=COUNT, arguments=(str(steps), str(seconds), str(every)))


def tiny_heimdall(**train: object) -> Request:
    """The smallest training of a real workload."""
    from stoker.train.config_file import build, to_values
    from stoker.workloads import find

    settings = {"picture": False, "loggers": [], "preflight": False, "device": "cpu", "log_every": 1, **train}
    config = {
        "made": {"samples": 64},
        "width": 8,
        "layers": 1,
        "heads": 1,
        "train": {"epochs": 2, "batch_size": 16, **settings},
    }
    made = to_values(build(find("heimdall").config, config))
    return Request(name="tiny", workload="heimdall", config=made)


class Service:
    """A store, a folder, and a dispatcher that can be started and killed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store.open(settings.store_url)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the dispatcher."""
        self.process = dispatcher.start(self.settings)
        return self.process

    def kill(self) -> None:
        """End the dispatcher as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def folder(self, job: Job) -> JobFolder:
        """A job's files."""
        return JobFolder(root=self.settings.root, id=job.id)

    def wait(self, job: Job, *wanted: State) -> Job:
        """The job once it is in such a state; by default, once it has ended."""
        states = set(wanted) or ENDED
        return self.until(lambda: self.store.job(job.id), lambda found: found.state in states)

    def wait_for_step(self, job: Job, step: int) -> Job:
        """The job once it has told of a step."""
        return self.until(
            lambda: self.store.job(job.id),
            lambda found: (
                found.state in ENDED or bool(self.store.points(found.id, after=0).items[step - 1 :])
            ),
        )

    def until(self, look: Callable[[], Job], good: Callable[[Job], bool]) -> Job:
        """What is looked at, once it is good."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = look()
            if good(found):
                return found
            time.sleep(0.05)
        raise AssertionError(f"not in {PATIENCE_S:g} s: {found}\n{self.tell(found)}")

    def tell(self, job: Job) -> str:
        """What there is to read of a job, for a test that failed."""
        texts = [line.text for line in self.store.lines(job.id).items]
        texts += [path.read_text() for path in self.folder(job).path.glob("attempt-*/runner.txt")]
        return "\n".join(texts)

    def close(self) -> None:
        """Stop the dispatcher, and every runner there is."""
        from stoker.jobs.identity import Identity

        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for job in self.store.jobs(limit=1000).items:
            for attempt in job.attempts:
                if attempt.handle is not None and attempt.ended is None:
                    Identity.parse(attempt.handle).kill_session()
        self.store.close()
