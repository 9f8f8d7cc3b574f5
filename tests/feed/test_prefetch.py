"""Batches read ahead by threads and by real worker processes: in order, and those that were asked for."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stoker.errors import ReaderDied
from stoker.feed import prefetch
from stoker.feed.prefetch import Batches, Inline, Prefetch, Threads, Workers
from stoker.feed.sources.base import Indices, Source

# From Python 3.12 a fork beside threads is warned of; that it goes well is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


DEADLY = 999


class Told(Source):
    """A sample is its number, and the process that read it."""

    def __len__(self) -> int:
        return 1000

    def read(self, indices: Indices) -> Any:
        """Number and process of each."""
        if 666 in indices:
            raise OSError("cannot be read")
        if DEADLY in indices:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.from_numpy(np.stack([indices, np.full(len(indices), os.getpid())], axis=1))

    def fingerprint(self) -> str:
        """There is but one."""
        return "told"


def workers() -> Workers:
    return Workers(Told(), workers=2, ahead=4, pin=False, seed=0)


def arrays(begin: int, batches: int = 10) -> list[Indices]:
    return [np.arange(first, first + 4) for first in range(begin, begin + 4 * batches, 4)]


def numbers(batch: torch.Tensor) -> list[int]:
    return [int(number) for number in batch[:, 0]]


def processes(batches: Iterator[torch.Tensor]) -> set[int]:
    return {int(pid) for batch in batches for pid in batch[:, 1]}


READERS: list[Callable[[], Prefetch]] = [
    workers,
    lambda: Threads(Told(), threads=2, ahead=4),
    lambda: Inline(Told()),
]


@pytest.mark.parametrize("make", READERS, ids=["workers", "threads", "inline"])
def test_two_at_a_time_each_get_their_own(make: Callable[[], Prefetch]) -> None:
    """As with two iterators of one DataLoader; also if one begins late, and ends before the other."""
    reader = make()
    wanted = [arrays(0), arrays(100), arrays(200, batches=3)]
    first, second, third = (reader.read(one) for one in wanted)
    got = [[numbers(next(first))], [], []]
    got[1] += [numbers(next(second)) for _ in range(4)]
    got[0] += [numbers(next(first)) for _ in range(4)]
    got[2] += [numbers(batch) for batch in third]
    got[1] += [numbers(batch) for batch in second]
    got[0] += [numbers(batch) for batch in first]
    assert got == [[array.tolist() for array in one] for one in wanted]
    assert [numbers(batch) for batch in reader.read(arrays(300))] == [one.tolist() for one in arrays(300)]
    reader.close()


class Threaded(Told):
    """A sample is the thread that read it; `hold` keeps the first two until both are read."""

    def __init__(self) -> None:
        self.hold = threading.Barrier(2)

    def read(self, indices: Indices) -> Any:
        """The thread, for each."""
        if indices[0] < 8:
            self.hold.wait(timeout=30)
        return torch.from_numpy(np.full((len(indices), 1), threading.get_ident()))


def threads_of(reader: Threads) -> list[threading.Thread]:
    """Those that read an epoch."""
    read = {number for batch in reader.read(arrays(0)) for number in numbers(batch)}
    return [one for one in threading.enumerate() if one.ident in read]


def test_threads_live_on_until_nobody_refers_to_them() -> None:
    """From epoch to epoch, also when one is left early; not after close, nor without the reader."""
    reader = Threads(Threaded(), threads=2, ahead=4)
    usual = threads_of(reader)
    assert len(usual) == 2
    left = reader.read(arrays(100))
    next(left)
    del left
    assert threads_of(reader) == usual
    reader.close()
    others = threads_of(reader)
    del reader
    gc.collect()
    for one in usual + others:
        one.join(timeout=30)
        assert not one.is_alive()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_reads_with_threads_of_its_own() -> None:
    """Its parent's are not there."""
    reader = Threads(Told(), threads=2, ahead=4)
    assert processes(reader.read(arrays(0))) == {os.getpid()}
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(processes(reader.read(arrays(0))) != {os.getpid()})
        finally:
            os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)


def test_workers_live_on() -> None:
    """From epoch to epoch, also when one is left early; after a second epoch beside it; not after close."""
    reader = workers()
    usual = processes(reader.read(arrays(0)))
    left = reader.read(arrays(100))
    next(left)
    del left
    assert processes(reader.read(arrays(200))) == usual

    beside = reader.read(arrays(0))
    next(beside)
    others = processes(reader.read(arrays(100)))
    assert not others & usual
    assert processes(beside) <= usual
    assert processes(reader.read(arrays(0))) == others

    beside = reader.read(arrays(0))
    next(beside)
    reader.close()
    assert processes(beside) <= others
    assert not processes(reader.read(arrays(0))) & (usual | others)
    reader.close()


def test_after_an_error_the_next_epoch_is_read() -> None:
    """It comes where the batch would have come; the workers of the next epoch are new ones."""
    reader = workers()
    before = processes(reader.read(arrays(0)))
    broken = reader.read([np.arange(4), np.array([666])])
    assert numbers(next(broken)) == [0, 1, 2, 3]
    with pytest.raises(OSError, match="cannot be read"):
        next(broken)
    assert not processes(reader.read(arrays(0))) & before
    reader.close()


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a batch looks for dead workers every 0.3 s, not 5."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.3,))


@pytest.mark.usefixtures("looks_often")
@pytest.mark.filterwarnings("ignore:worker process .* of the feed died:UserWarning")
@pytest.mark.parametrize("batches", [0, 3], ids=["at the start", "in mid-epoch"])
def test_what_a_dead_worker_had_under_way_is_read_again(batches: int) -> None:
    """Each batch comes once and in order, and nothing is raised where the loop is at work meanwhile."""
    reader = workers()
    before = processes(reader.read(arrays(0)))
    dying = reader.read(arrays(0))
    got = [next(dying) for _ in range(batches)]
    os.kill(min(before), signal.SIGKILL)
    wait_for_death(min(before))
    got += list(dying)
    assert [numbers(batch) for batch in got] == [one.tolist() for one in arrays(0)]
    after = list(reader.read(arrays(100)))
    assert [numbers(batch) for batch in after] == [one.tolist() for one in arrays(100)]
    assert not processes(iter(after)) & before
    reader.close()


class Dying(Told):
    """The first worker that reads a batch is killed when its batch is taken from it."""

    def __init__(self, once: Path) -> None:
        self._once = once

    def read(self, indices: Indices) -> Any:
        """As above, with what kills it beside it."""
        return super().read(indices), KilledWhenTaken(self._once)


class KilledWhenTaken:
    """Its process is killed as another unpickles it, which meets the end of their connection."""

    def __init__(self, once: Path) -> None:
        self.given = (str(once), os.getpid())

    def __reduce__(self) -> Any:
        return kill_and_meet_it, self.given


def kill_and_meet_it(once: str, pid: int) -> None:
    try:
        Path(once).mkdir()
    except FileExistsError:
        return
    os.kill(pid, signal.SIGKILL)
    raise ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.filterwarnings("ignore:worker process .* of the feed died:UserWarning")
def test_a_worker_that_is_killed_as_its_batch_is_taken_is_replaced(tmp_path: Path) -> None:
    """The connection ends a little before the process can be seen to have."""
    reader = Workers(Dying(tmp_path / "once"), workers=2, ahead=4, pin=False, seed=0)
    got = [numbers(batch) for batch, _ in reader.read(arrays(0))]
    assert got == [one.tolist() for one in arrays(0)]
    reader.close()
    assert (tmp_path / "once").exists()


def wait_for_death(pid: int) -> None:
    """Until the process is a zombie or gone: torch's handler has been called by then, or is next."""
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


@pytest.mark.usefixtures("looks_often")
@pytest.mark.filterwarnings("ignore:worker process .* of the feed died:UserWarning")
def test_a_batch_that_kills_every_worker_is_told() -> None:
    """After three deaths without a batch between them; what came before it has come."""
    reader = workers()
    deadly = reader.read([*arrays(0, batches=2), np.array([DEADLY]), *arrays(100, batches=2)])
    assert [numbers(next(deadly)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ReaderDied, match=r"SIGKILL.* 3 times over, at samples 999: .*memory"):
        next(deadly)
    assert [numbers(batch) for batch in reader.read(arrays(0))] == [one.tolist() for one in arrays(0)]
    reader.close()


def test_a_batch_of_other_samples_is_never_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a loader shared by two epochs after all, the one whose reads it drops says so."""
    reader = workers()
    list(reader.read(arrays(0)))
    (loader,) = reader._waiting
    monkeypatch.setattr(reader, "_make", lambda sampler: loader)
    first, second = reader.read(arrays(0)), reader.read(arrays(100))
    next(first)
    next(second)
    with pytest.raises(AssertionError, match="other samples than were asked for"):
        next(first)
    del second
    reader.close()


class Paired:
    """Batches that are tuples, with names beside the tensors."""

    def read(self, indices: Indices) -> Any:
        """The indices twice."""
        numbers = torch.from_numpy(indices.copy())
        return {"pair": (numbers, numbers.float()), "name": "a"}


def test_a_batch_that_is_pinned_keeps_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own way makes lists of tuples. Pinned by a stand-in: there may be no card here."""
    monkeypatch.setattr(prefetch, "pin_memory", lambda leaf: leaf * 2)
    pinned = Batches(Paired())[np.array([1, 2])].pin_memory().batch
    assert isinstance(pinned["pair"], tuple)
    assert [each.tolist() for each in pinned["pair"]] == [[2, 4], [2.0, 4.0]]
    assert pinned["name"] == "aa"


@pytest.mark.gpu
def test_what_workers_read_comes_pinned_and_built_as_it_was() -> None:
    """By torch's own thread."""
    reader = Workers(Paired(), workers=1, ahead=2, pin=True, seed=0)
    for batch in reader.read([np.array([1, 2]), np.array([3])]):
        assert isinstance(batch["pair"], tuple)
        assert all(each.is_pinned() for each in batch["pair"])
    reader.close()
