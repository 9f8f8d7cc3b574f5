"""A process by its number and its birth: on any clock, and after a new start of the machine."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.identity import Identity
from stoker.jobs.settings import Settings

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a birth is a time of day")


@pytest.fixture
def leader() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that leads a session, with a child that does not end by itself."""
    child = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    yield child
    with contextlib.suppress(ProcessLookupError):  # a test may have ended it
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What a clock that is set does: every time of birth, which is counted from the boot's, moves with it."""
    told = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: told(process) + seconds)


@LINUX
@pytest.mark.parametrize("seconds", [-3600.0, 0.5, 3600.0])
def test_a_clock_that_is_set_ends_no_job(
    leader: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A runner is the same one after NTP moved the clock; what it leaves behind is still found and killed."""
    assert leader.stdout is not None
    worker = int(leader.stdout.readline())
    engine, handle = LocalEngine(Settings(root=Path())), str(Identity.of(leader.pid))
    set_clock(monkeypatch, seconds)
    assert engine.poll(handle) == "alive"
    assert psutil.pid_exists(worker)
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    assert engine.poll(handle) == "gone"
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


@LINUX
def test_a_handle_of_an_earlier_boot_is_nobodys(leader: "subprocess.Popen[bytes]") -> None:
    """The same number and the same ticks after a new start of the machine are another process."""
    before = replace(Identity.of(leader.pid), boot="f0f0f0f0-0000-0000-0000-000000000000")
    assert not before.lives()
    before.kill_session()
    assert leader.poll() is None


def test_a_handle_that_an_earlier_version_wrote_is_understood(leader: "subprocess.Popen[bytes]") -> None:
    """It has the time of day of the birth: what ran when the service was brought up to date goes on."""
    born = psutil.Process(leader.pid).create_time()
    own = Identity.of(leader.pid)
    old = Identity.parse(f"{own.host}/{leader.pid}/{born:.2f}/GPU-1")
    assert old.lives()
    assert old.gpus == ("GPU-1",)
    assert not replace(old, born=old.born - 5).lives()
    old.kill_session()
    assert not own.lives()
