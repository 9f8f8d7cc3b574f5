"""A server that is killed again and again while jobs are asked for, run, cancelled and resumed.

Each kill ends the server's whole process group by SIGKILL: server and dispatcher. Six of ten while it, the
dispatcher or a runner is inside a write (`deadly/sitecustomize.py`), the others at any moment, some of them
while it starts. Each fifth is the machine's: all runners and trainings die with it.
"""

import contextlib
import http.client
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
from collections import Counter
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
_PLACES = {
    "server": ("statement", "commit"),
    "dispatcher": ("statement", "commit"),
    "runner": ("statement", "commit", "file"),
}
# Of all kills. At least half are asked for; four of ten are left to chance.
_AIMED = 0.6
# A process that writes nothing for so long is let go, for whichever writes next.
_PATIENCE_S = 10.0


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
    # By whose write, and where in it: "server, commit".
    inside: Counter[str] = field(default_factory=Counter)
    by_chance: int = 0
    machine: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.aimed = set(self.random.sample(range(self.kills), round(_AIMED * self.kills)))
        self.armed = self.root / "deadly"
        self.armed.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.store = Store.open(f"sqlite:///{self.root / 'jobs.db'}")

    # --- the server ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, and wait until it answers."""
        process = self.spawn()
        deadline = time.monotonic() + 120
        while self.ask("GET", "/health") is None:
            assert process.poll() is None, (self.root / "server.txt").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start it."""
        for left in self.armed.iterdir():
            left.unlink(missing_ok=True)
        path = os.pathsep.join([str(_DEADLY), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.root / "server.txt").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stoker", "serve", "--port", str(self.port), "--root", str(self.root),
                 "--slots", str(self.slots), "--scripts", str(SCRIPTS)],
                env={**os.environ, "PYTHONPATH": path, "STOKER_DEADLY": str(self.armed)},
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        return self.process

    def end(self) -> None:
        """Kill the whole group, as a crash does."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):  # it was killed in its write
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
        except (OSError, http.client.HTTPException):
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
        """Kill it once: inside a write, or at some moment."""
        if number in self.aimed:
            self.kill_inside(number, pending)
        else:
            self.by_chance += 1
            if self.random.random() < 0.25:  # while it starts
                self.end()
                self.spawn()
            time.sleep(self.random.uniform(0, 1.5))
        self.end()
        if number % 5 == 4:
            self.machine += 1
            for job in self.store.jobs(limit=1000).items:
                for attempt in job.attempts[-1:]:
                    if attempt.handle is not None and attempt.ended is None:
                        Identity.parse(attempt.handle).kill_session()

    def kill_inside(self, number: int, pending: list[int]) -> None:
        """Have it killed by a process that is inside a write, and see to it that there is one."""
        assert self.process is not None
        victim = self.random.choice(_VICTIMS)
        if self.is_idle() and not pending:  # nothing is left to run
            victim = "server"
        aim = {
            "kind": victim, "place": self.random.choice(_PLACES[victim]), "number": number,
            "statement": self.random.randrange(6),
        }  # fmt: skip
        self.aim(aim)
        began = time.monotonic()
        while self.process.poll() is None:
            waited = time.monotonic() - began
            assert waited < 12 * _PATIENCE_S, f"no process wrote anything in {waited:.0f} s"
            if waited > _PATIENCE_S and aim["kind"] != "any":
                aim = {**aim, "kind": "any", "place": "statement"}
                self.aim(aim)
            if pending and self.submit(pending[0]):
                pending.pop(0)
            elif aim["kind"] in ("server", "any"):
                self.meddle_surely()
            time.sleep(0.02)
        # Who was inside: the file that it took is still its own, since it never left.
        taken = max(self.armed.glob(f"aimed-{number}-*"), key=lambda path: path.stat().st_ctime_ns)
        place = json.loads(taken.read_text())["place"]
        self.inside[f"{taken.name.rpartition('-')[2]}, {place}"] += 1

    def aim(self, told: dict[str, Any]) -> None:
        """Leave word for the next that writes."""
        assert self.process is not None
        part = self.armed / "part"
        part.write_text(json.dumps({**told, "group": self.process.pid}))
        part.rename(self.armed / "armed")

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
