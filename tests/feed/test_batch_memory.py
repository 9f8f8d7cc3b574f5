"""Memory for batches: used again when it is free, also after others were, and in a forked child."""

import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch

from stoker.feed.tiers import batch_memory
from stoker.feed.tiers.batch_memory import fresh_batch, fresh_rows

SIZE = 1 << 20


def addresses(count: int, size: int) -> set[int]:
    """Of so many blocks that are in use at once, and free then."""
    return {rows.ctypes.data for rows in [fresh_rows(1, size) for _ in range(count)]}


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """What other tests left is let go of."""
    batch_memory._free.clear()


def test_free_memory_is_used_again() -> None:
    """For rows of about the same size; not while anybody has it."""
    held = fresh_rows(1, SIZE)
    first = addresses(1, SIZE)
    assert addresses(1, SIZE) == first
    assert held.ctypes.data not in first
    (again,) = first
    assert fresh_rows(1, SIZE * 4 // 5).ctypes.data == again


def test_a_batch_is_nobody_elses_while_any_part_of_it_is_held() -> None:
    """Also where all that is left of it is a view, or an array of one."""
    batch = fresh_batch((4, 3, SIZE // 4), torch.float32)
    assert (batch.shape, batch.dtype) == ((4, 3, SIZE // 4), torch.float32)
    place = batch.data_ptr()
    part = batch[1:, 2].numpy()
    del batch
    assert fresh_batch((4, 3, SIZE // 4), torch.float32).data_ptr() != place
    del part
    assert place in {fresh_batch((12, SIZE), torch.uint8).data_ptr() for _ in range(2)}


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (3,)])
def test_a_batch_may_be_empty_or_of_single_numbers(shape: tuple[int, ...]) -> None:
    """It has its shape."""
    assert fresh_batch(shape, torch.int64).shape == shape


def test_the_latest_size_is_kept() -> None:
    """A feed of other batches than the ones before it has its memory kept, and theirs is let go of."""
    addresses(10, SIZE)
    assert len(batch_memory._free) == 4
    later = addresses(4, 16 * SIZE)
    assert addresses(4, 16 * SIZE) == later
    assert len(batch_memory._free) == 4


def test_threads_never_share_a_block() -> None:
    """Each finds its own mark in its rows, however often they are taken and given back."""
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(2000):
            rows = fresh_rows(1, SIZE)
            rows[0, :8] = mark
            rows[0, -8:] = mark
            if not ((rows[0, :8] == mark).all() and (rows[0, -8:] == mark).all()):
                wrong.append(mark)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_memory() -> None:
    """Whatever another thread of its parent was doing at that moment."""
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            fresh_rows(1, SIZE)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    ends = []
    try:
        for _ in range(60):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # which ends a child that waits for ever
                fresh_rows(4, SIZE)
                os._exit(0)
            ends.append(os.waitpid(pid, 0)[1])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert np.count_nonzero(ends) == 0
