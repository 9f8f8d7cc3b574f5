"""The kernel's queue of reads, of several threads and beside forked children."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.feed.per_process import PerProcess
from stoker.feed.tiers import direct_queue
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.pack import PAGE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a queue of Linux")
COUNT = 8


def rows_file(folder: Path) -> int:
    """Rows of a page, each full of its number."""
    path = folder / "rows"
    path.write_bytes(np.repeat(np.arange(COUNT, dtype=np.uint8), PAGE).tobytes())
    return os.open(path, os.O_RDONLY | os.O_DIRECT)


def read(queue: DirectQueue) -> list[int]:
    """The first byte of each row."""
    rows, offsets = fresh_rows(COUNT, PAGE), np.arange(COUNT) * PAGE
    vectors = np.stack([rows.ctypes.data + offsets, np.full(COUNT, PAGE)], axis=1).astype(np.uint64)
    for _, good in queue.read(offsets, vectors.reshape(COUNT, 1, 2), PAGE, [rows]):
        assert good.all()
    return [int(byte) for byte in rows[:, 0]]


def test_a_forked_child_leaves_its_parents_queue_alone(tmp_path: Path) -> None:
    """It reads by one of its own, and the parent reads on."""
    file = rows_file(tmp_path)
    try:
        queue = DirectQueue(file)
        assert read(queue) == list(range(COUNT))
        pid = os.fork()
        if pid == 0:
            right = False
            try:
                right = read(queue) == list(range(COUNT))
            finally:
                os._exit(0 if right else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert read(queue) == list(range(COUNT))
    finally:
        os.close(file)


class Taken(list[int]):
    """Free queues, of which another thread takes the last between a look at it and the taking."""

    def __bool__(self) -> bool:
        full = len(self) > 0
        self.clear()
        return full

    def pop(self, *_: object) -> int:
        """As it is, after the other."""
        self.clear()
        return super().pop()


def test_a_queue_that_another_thread_takes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second sets one up of their own."""
    file = rows_file(tmp_path)
    free = Taken()
    monkeypatch.setattr(direct_queue, "_free", PerProcess(lambda: free))
    try:
        queue = DirectQueue(file)
        before = list(free)
        assert read(queue) == list(range(COUNT))
        assert len(free) == 1
        assert list(free) != before
    finally:
        os.close(file)
        for one in [*before, *free]:
            direct_queue._call(direct_queue._DESTROY, one)


def test_a_queue_outlives_its_file_and_is_used_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is taken down when a cache is closed, and none set up when another is opened."""
    free: list[int] = []
    monkeypatch.setattr(direct_queue, "_free", PerProcess(lambda: free))
    kept = []
    for _ in range(2):
        file = rows_file(tmp_path)
        try:
            assert read(DirectQueue(file)) == list(range(COUNT))
        finally:
            os.close(file)
        kept.append(list(free))
    assert len(kept[0]) == 1
    assert kept[0] == kept[1]
    direct_queue._call(direct_queue._DESTROY, free[0])


def test_no_more_are_in_flight_than_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as many as that, until the last are asked for."""
    file, seen, now = rows_file(tmp_path), [0], 0
    really_submit, really_wait = direct_queue._submit, direct_queue._wait

    def submit(number: int, addresses: NDArray[np.uint64]) -> int:
        nonlocal now
        taken = really_submit(number, addresses)
        now += taken
        seen.append(now)
        return taken

    def wait(*words: Any) -> NDArray[Any]:
        nonlocal now
        came = really_wait(*words)
        now -= len(came)
        return came

    monkeypatch.setattr(direct_queue, "_submit", submit)
    monkeypatch.setattr(direct_queue, "_wait", wait)
    try:
        assert read(DirectQueue(file, in_flight=3)) == list(range(COUNT))
    finally:
        os.close(file)
    assert max(seen) == 3
