"""Processes: parents alive or dead, zombies, families."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.facts import process, snapshot
from stoker.facts.values import Gpu, Holder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


def start(*extra: str, **variables: str) -> "subprocess.Popen[bytes]":
    """Start a child that waits for its end, and wait until it runs."""
    child = subprocess.Popen(
        [sys.executable, "-c", WAIT, *extra],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
    )
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    return child


def test_a_child_is_seen_with_its_command_and_living_parent() -> None:
    """A running child has our user, its command line, an age and a parent that lives."""
    with start() as child:
        found = process.see(child.pid)
        assert found is not None
        assert found.is_python and not found.zombie
        assert found.parent == os.getpid()
        assert found.age_s is not None and found.age_s >= 0
        assert process.parent_lives(found) is True
        assert child.pid in process.family()


def test_an_adopted_process_has_a_dead_parent() -> None:
    """A process whose parent ended is known to be an orphan, or at least not known to have a parent."""
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\nprint(child.pid)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    orphan = int(done.stdout)
    try:
        found = process.see(orphan)
        assert found is not None
        assert found.parent != os.getpid()
        # In a container whose first process is a shell it cannot be told.
        assert process.parent_lives(found) in (False, None)
        assert orphan not in process.family()
    finally:
        os.kill(orphan, 9)


def test_a_python_zombie_is_a_stray() -> None:
    """A child that ended and was not waited for is found in state Z, and listed."""
    with start() as child:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        found = process.see(child.pid)
        assert found is not None and found.zombie
        strays = snapshot.find_strays(process.see_all(), [])
        assert [(one.kind, one.gpu_bytes) for one in strays if one.pid == child.pid] == [("zombie", None)]


def test_holders_with_a_dead_parent_are_strays() -> None:
    """A Python process that holds two cards after its parent died is one stray with the bytes of both."""
    own = process.see(os.getpid())
    assert own is not None
    holder = Holder(pid=own.pid, bytes=5, parent_alive=False, role="rank")
    cards = [
        Gpu(
            index=index,
            uuid=None,
            name=None,
            driver=None,
            total_bytes=None,
            used_bytes=None,
            free_bytes=None,
            holders=(holder,),
        )
        for index in (0, 1)
    ]
    (stray,) = snapshot.find_strays([own], cards)
    assert (stray.pid, stray.kind, stray.gpu_bytes) == (own.pid, "rank", 10)


def test_no_process_gives_none() -> None:
    """A pid that is not there is `None`."""
    assert process.see(2**22 + 1) is None


def test_a_spawned_worker_and_a_rank_are_recognised() -> None:
    """Workers are known by their command, ranks by torchrun's variables."""
    with start(LOCAL_RANK="0") as child:
        found = process.see(child.pid)
        assert found is not None and process.role_of(found) == "rank"
    with start("--multiprocessing-fork") as child:
        found = process.see(child.pid)
        assert found is not None and process.role_of(found) == "worker"


def test_open_devices_are_seen(tmp_path: Path) -> None:
    """A process with /dev/nvidia0 open has the GPU open; one without has not; a hidden one is unknown."""
    for pid, target in ((1, "/dev/nvidia0"), (2, "/dev/null")):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to(target)
    found = [process.opens_gpu(pid, tmp_path) for pid in (1, 2, 3)]
    assert found == [True, False, None]
