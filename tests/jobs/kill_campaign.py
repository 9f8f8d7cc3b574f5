"""A server that is killed again and again while jobs are asked for, run, cancelled and resumed.

Each kill ends the server's whole process group by SIGKILL: server and dispatcher. Half of them at a moment
that a process of it (or a runner) is inside a write to the store, the others at any moment. Each fifth is the
machine's: all runners and trainings die with it.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.jobs.identity import Identity
from stoker.jobs.job import Job
from stoker.jobs.states import ENDED, State
from stoker.jobs.store import Store

from .kit import SCRIPTS

_DEADLY = Path(__file__).parent / "deadly"
_VICTIMS = ("server", "dispatcher", "runner", "dispatcher", "server")


def steps_of(number: int) -> int:
    """How far the job of that number counts."""
    return 10 + (number * 7) % 30


@dataclass
class Campaign:
    """One server's life, or lives."""

    root: Path
    kills: int
    jobs: int
    seed: int = 7
    slots: int = 3
    port: int = 0
    inside: int = 0
    machine: int = 0
    unarmed: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.armed = self.root / "deadly"
        self.armed.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.store = Store.open(f"sqlite:///{self.root / 'jobs.db'}")

    # --- the server ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.armed.joinpath("armed").unlink(missing_ok=True)
        path = os.pathsep.join([str(_DEADLY), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.root / "server.txt").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stoker", "serve", "--port", str(self.port), "--root", str(self.root),
                 "--slots", str(self.slots), "--scripts", str(SCRIPTS)],
                env={**os.environ, "PYTHONPATH": path, "STOKER_DEADLY": str(self.armed)},
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while self.ask("GET", "/health") is None:
            assert self.process.poll() is None, (self.root / "server.txt").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self) -> None:
        """Kill the whole group, as a crash does."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any | None:
        """An answer; None where the server is away, or died before it could answer."""
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                told = error.read().decode()
            assert error.code in (409, 503), f"{method} {path}: {error.code} {told}"
            return {"refused": told}
        except OSError:
            return None

    # --- what users do ------------------------------------------------------------------------------------

    def submit(self, number: int) -> bool:
        """Ask for a job; whether the answer came. Asked again with the same key, it is the same job."""
        arguments = [str(steps_of(number)), "0.05", "5"]
        body = {"job_name": f"job {number}", "script": "count.py", "arguments": arguments}
        answer = self.ask("POST", "/api/training/jobs", body, key=f"key-{number}")
        if answer is not None and "id" in answer:
            self.asked.append(answer["id"])
            return True
        return False

    def meddle(self) -> None:
        """Cancel or resume some job."""
        found = self.store.jobs(limit=1000).items
        stopped = [job for job in found if job.state in (State.CANCELLED, State.LOST)]
        running = [job for job in found if job.state in (State.RUNNING, State.QUEUED)]
        if stopped and self.random.random() < 0.7:
            self.ask("POST", f"/api/training/jobs/{self.random.choice(stopped).id}/resume")
        elif running and self.random.random() < 0.3:
            self.ask("POST", f"/api/training/jobs/{self.random.choice(running).id}/cancel")

    # --- kills --------------------------------------------------------------------------------------------

    def kill(self, number: int, pending: list[int]) -> None:
        """Kill it once: inside a write where it can be had, else at this moment."""
        if number % 2 == 0:
            victim = self.random.choice(_VICTIMS)
            if victim != "server" and self.is_idle() and not pending:
                victim = "server"
            told = {"kind": victim, "place": self.random.choice(("before", "after")), "number": number}
            part = self.armed / "part"
            part.write_text(json.dumps(told))
            part.rename(self.armed / "armed")
            deadline = time.monotonic() + 15
            while not (self.armed / f"died-{number}").exists() and time.monotonic() < deadline:
                if pending and self.submit(pending[0]):
                    pending.pop(0)
                elif victim == "server":
                    self.meddle_surely()
                time.sleep(0.02)
            self.inside += (self.armed / f"died-{number}").exists()
        else:
            time.sleep(self.random.uniform(0, 1.5))
        self.end()
        if number % 5 == 4:
            self.machine += 1
            for job in self.store.jobs(limit=1000).items:
                for attempt in job.attempts[-1:]:
                    if attempt.handle is not None and attempt.ended is None:
                        Identity.parse(attempt.handle).kill_session()

    def meddle_surely(self) -> None:
        """Have the server write: a job is asked for that is cancelled at once and never runs."""
        answer = self.ask("POST", "/api/training/jobs", {"job_name": "extra", "script": "count.py",
                                                         "arguments": ["1", "0", "1"]})  # fmt: skip
        if answer is not None and "id" in answer:
            self.ask("POST", f"/api/training/jobs/{answer['id']}/cancel")

    def is_idle(self) -> bool:
        """Whether nothing is left to run."""
        return all(job.state in ENDED for job in self.store.jobs(limit=1000).items)

    def run(self) -> list[Job]:
        """All of it; the jobs as they ended."""
        pending = list(range(self.jobs))
        self.start()
        for number in range(self.kills):
            # Jobs are spread over the campaign, so that there is something to kill to its end.
            due = self.jobs * (number + 1) // self.kills
            while pending and pending[0] < due - 1 and self.submit(pending[0]):
                pending.pop(0)
            self.meddle()
            self.kill(number, [one for one in pending if one < due])
            pending = [one for one in range(self.jobs) if not self.is_known(one)]
            self.start()
        while pending:
            if self.submit(pending[0]):
                pending.pop(0)
        return self.finish()

    def is_known(self, number: int) -> bool:
        """Whether a job of that number is in the store."""
        return any(job.name == f"job {number}" for job in self.store.jobs(limit=1000).items)

    def finish(self) -> list[Job]:
        """Left in peace, all jobs end; those that were cancelled are resumed."""
        deadline = time.monotonic() + 1200
        while time.monotonic() < deadline:
            found = [job for job in self.store.jobs(limit=1000).items if job.name != "extra"]
            for job in found:
                if job.state in (State.CANCELLED, State.LOST):
                    self.ask("POST", f"/api/training/jobs/{job.id}/resume")
            if all(job.state in (State.DONE, State.FAILED) for job in found):
                return found
            time.sleep(0.2)
        raise AssertionError([(job.name, job.state) for job in found])

    def close(self) -> None:
        """End all that is left."""
        if self.process is not None and self.process.poll() is None:
            self.end()
        for job in self.store.jobs(limit=1000).items:
            for attempt in job.attempts[-1:]:
                if attempt.handle is not None and attempt.ended is None:
                    Identity.parse(attempt.handle).kill_session()
        self.store.close()
