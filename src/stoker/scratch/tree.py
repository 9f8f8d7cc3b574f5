"""The processes of a run: found by descent, ended all at once, and none left."""

import os
import signal
import time
from collections.abc import Callable

import psutil

# A process in an uninterruptible call dies when it returns; longer than this is told, not waited for.
_PATIENCE_S = 10.0


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


def end_all(pid: int, reap: Callable[[], None]) -> tuple[int, ...]:
    """Kill everything below a process, also what forks meanwhile; return what will not die.

    `reap` takes away the dead, so that they are not counted.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        living = descendants(pid)
        if not living:
            return ()
        # Stopped first: a process that forks faster than it is killed makes no more then.
        for process in living:
            _send(process.pid, signal.SIGSTOP)
        for process in {*living, *descendants(pid)}:
            _send(process.pid, signal.SIGKILL)
        reap()
        if time.monotonic() > deadline:
            return tuple(process.pid for process in descendants(pid))
        time.sleep(0.005)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended by itself
