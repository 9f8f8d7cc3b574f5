"""Nothing that a training started outlives it, whatever session or group that moved to."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stoker.jobs import leftovers
from stoker.jobs.engines.engine import Place
from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.job import Job, Request
from stoker.jobs.states import State
from stoker.jobs.store.holding import Holding
from stoker.watch.scribe_process import CODE

from .kit import Service

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")

# A child, one with a session of its own (as torchrun's ranks have), and one whose parent is gone.
SCRIPT = """
import os, subprocess, sys, time
sleep = ["sleep", "600"]
made = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
daemon = subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE)
print(*(one.pid for one in made), daemon.stdout.decode().strip(), flush=True)
time.sleep(float(sys.argv[1]))
os._exit(int(sys.argv[2]))
"""


@pytest.fixture
def engine(service: Service) -> Iterator[LocalEngine]:
    """What starts a runner without a dispatcher; in the end it has ended."""
    made = LocalEngine(service.settings)
    yield made
    for job in service.store.jobs().items:
        handle = job.attempts[0].handle or ""
        while made.poll(handle) != "gone":
            time.sleep(0.01)


def run(service: Service, engine: LocalEngine, tmp_path: Path, *arguments: str) -> Job:
    """A job of that script."""
    script = tmp_path / "leaves.py"
    script.write_text(SCRIPT)
    job = service.store.create(Request(name="leaves", script=str(script), arguments=arguments))
    attempt = Holding(service.store).claim(job.id, engine="local")
    assert attempt is not None
    engine.start(job, attempt, Place())
    return job


def started(service: Service, job: Job) -> list[int]:
    """What it started, once it has said so."""
    service.until(lambda: service.store.job(job.id), lambda _: bool(service.store.lines(job.id).items))
    return [int(word) for word in service.store.lines(job.id).items[0].text.split()]


def alive(pids: list[int]) -> list[int]:
    return [
        pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def test_a_cancelled_job_leaves_no_process(service: Service, engine: LocalEngine, tmp_path: Path) -> None:
    """Its slot and its card are free when it says so."""
    job = run(service, engine, tmp_path, "600", "0")
    pids = started(service, job)
    assert len(alive(pids)) == 3
    service.store.ask_cancel(job.id)
    assert service.wait(job).state is State.CANCELLED
    assert alive(pids) == []


@pytest.mark.slow
@pytest.mark.parametrize(("code", "state"), [("0", State.DONE), ("3", State.FAILED)])
def test_a_job_that_ends_by_itself_leaves_no_process(
    service: Service, engine: LocalEngine, tmp_path: Path, code: str, state: State
) -> None:
    """What it left in the background does not go on beside the next job."""
    job = run(service, engine, tmp_path, "0", code)
    assert service.wait(job).state is state
    assert alive(started(service, job)) == []


def test_an_observer_is_known_from_what_it_observes() -> None:
    """It writes what it was told to the end; all else is killed at once."""
    assert leftovers.SCRIBE in CODE
