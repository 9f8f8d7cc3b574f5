"""What a worker shares with the process that it was forked from, read twice."""

import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stoker.doctor.resources import read_memory
from stoker.doctor.sharing import Sharing

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the kernel tells no shared memory"
)


def touch(words: list[str], told: Connection) -> None:
    """A worker: it looks at every word when it is told to."""
    told.send("there")
    while told.recv() == "look":
        told.send(sum(sys.getrefcount(word) for word in words))


def test_words_that_a_worker_looks_at_are_copied_and_only_then() -> None:
    """Counting references writes to them: 20 MB of strings become the worker's own."""
    words = [f"{number:0150d}" for number in range(100_000)]
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=touch, args=(words, there), daemon=True)
    worker.start()
    assert worker.pid is not None
    assert here.recv() == "there"
    idle, looked = Sharing(), Sharing()
    idle.read([worker.pid])
    idle.read([worker.pid])
    looked.read([worker.pid])
    here.send("look")
    assert here.recv() > 0
    looked.read([worker.pid])
    here.send("end")
    worker.join()
    found = [read_memory(one.lines, one.lines) for one in (idle, looked)]
    assert all(one is not None for one in found)
    copies = [one.copied or 0.0 for one in found if one is not None]
    assert copies[0] < 4 << 20 < 12 << 20 < copies[1]
