"""The processes of a run: found by descent, ended all at once, and none left."""

import os
import signal
import time
from pathlib import Path

import psutil

# A process in an uninterruptible call dies when it returns; longer than this is told, not waited for.
_PATIENCE_S = 10.0
_NAP_S = 0.001
_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()


def descendants(pid: int) -> list[psutil.Process]:
    """Every living process below one. Orphans are there too if that one adopts them."""
    try:
        return [
            process
            for process in psutil.Process(pid).children(recursive=True)
            if process.status() != psutil.STATUS_ZOMBIE
        ]
    except psutil.NoSuchProcess:
        # One that died while it was looked at: the rest is as it was a moment ago.
        return [] if not psutil.pid_exists(pid) else descendants(pid)


def end_all() -> tuple[int, ...]:
    """Kill everything below this process, also what forks meanwhile; return what will not die.

    Whoever adopts orphans has a child as long as anything lives below: that alone, told by the kernel, ends
    it. A list of processes that fork and die all the time may be empty while they live.
    """
    me = os.getpid()
    deadline = time.monotonic() + _PATIENCE_S
    while reap():
        for pid in _below(me):
            _kill(pid)
        if time.monotonic() > deadline:
            return tuple(process.pid for process in descendants(me))
        time.sleep(_NAP_S)
    return ()


def reap() -> bool:
    """Take away the dead among our children; whether others are left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def _below(pid: int) -> list[int]:
    """Every process below one, as the kernel lists them: in microseconds, while they fork."""
    try:
        children = [
            int(child)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except ProcessLookupError:  # it ended: what it left is adopted, and met again
        return []
    except FileNotFoundError:
        # So it did; or this kernel does not list children.
        return [] if _LISTS_CHILDREN else [process.pid for process in descendants(pid)]
    return [found for child in children for found in (child, *_below(child))]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself
