"""Locks between processes: the kernel's, which a killed holder cannot keep."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_LONGEST_NAP_S = 0.05


@contextlib.contextmanager
def locked(path: Path, *, patience_s: float) -> Iterator[bool]:
    """Hold the file's lock alone; False if others (a stopped process, say) kept it all that time.

    Opened anew each time: so threads of one process exclude each other too, and it is released by name, so
    that a child forked meanwhile, which shares the open file, does not hold it on.
    """
    # In a folder that several users may write to, a link of another's is not followed.
    nofollow = getattr(os, "O_NOFOLLOW", 0)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | nofollow, 0o666)
    try:
        mine = _acquire(file, patience_s)
        try:
            yield mine
        finally:
            if mine:
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _acquire(file: int, patience_s: float) -> bool:
    nap, until = 0.001, time.monotonic() + patience_s
    while not _tried(file):
        if time.monotonic() >= until:
            return False
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_S)
    return True


def share(path: Path) -> int:
    """Keep others from having the file alone while the descriptor returned is open."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
    except BaseException:
        os.close(file)
        raise
    return file


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether nobody shares the file, kept so for the block."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mine = _tried(file)
        try:
            yield mine
        finally:
            if mine:
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _tried(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def claimed(file: int, number: int) -> Iterator[bool]:
    """Whether no other process works on this number, kept so for the block.

    A record lock, one byte a number: a file has room for all of them, and a forked child inherits none.
    Threads of one process do not exclude each other by it; that costs work done twice, nothing else.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number)
