"""Memory that is asked for ahead of its use: it is there, and what is written to it stays."""

import mmap
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.feed.sources import ready_memory
from stoker.feed.sources.ready_memory import readied


def resident_kb(array: np.ndarray) -> int:
    """What of an array's own mapping is in memory."""
    begin, found = array.ctypes.data, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, _, last = words[0].partition("-")
            inside = int(first, 16) <= begin < int(last, 16)
        elif words[0] == "Rss:" and inside:
            found = int(words[1])
    return found


def test_what_is_written_meanwhile_stays() -> None:
    """Before the thread has come to it, and after: nothing is written over, and the thread is gone."""
    before = set(threading.enumerate())
    arrays = [np.empty((4096, 8192), np.uint8), np.empty((10, 10), np.uint8)]
    with readied(arrays):
        for row in range(4095, -1, -1):
            arrays[0][row] = row % 251
        arrays[1][:] = 7
    assert np.array_equal(arrays[0][:, 0], np.arange(4096) % 251)
    assert (arrays[0] == arrays[0][:, :1]).all()
    assert (arrays[1] == 7).all()
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asked as Linux is")
def test_pages_are_there_before_they_are_touched() -> None:
    """All of a large array; nobody but the thread has touched it."""
    array = np.frombuffer(mmap.mmap(-1, 32 << 20), np.uint8)
    done = threading.Event()
    ready_memory._populate([array], done)
    if not resident_kb(array):
        pytest.skip("this kernel does not give memory ahead of its use")
    assert resident_kb(array) >= 32 << 10


def test_who_fails_meanwhile_is_told_so() -> None:
    """The error is the block's own, and the thread is gone."""
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="lost"), readied([np.empty(64 << 20, np.uint8)]):
        raise ValueError("lost")
    assert set(threading.enumerate()) <= before
