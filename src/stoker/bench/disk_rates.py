"""How fast rows come from a disk when the page cache has none: the disk tier beside the disk's own limit.

Every way reads the same rows in the same order, in turns. Before each the page cache forgets the file; what
the machine under a virtual disk keeps is out of reach, for all ways alike.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import BenchFailed
from stoker.feed import Feed
from stoker.feed.order import Order
from stoker.feed.sources.base import Indices, Source
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import ROWS, Bytes

IN_FLIGHT = (1, 2, 4, 8, 16, 32)


class Noise(Source):
    """Rows that no disk or file system can compress, made from their numbers."""

    def __init__(self, rows: int, row_bytes: int) -> None:
        self.rows, self.row_bytes = rows, row_bytes
        self._noise = np.random.default_rng(0).integers(0, 256, row_bytes + rows, np.uint8)

    def __len__(self) -> int:
        return self.rows

    def read(self, indices: Indices) -> Any:
        """Windows into one stretch of noise, each a byte further."""
        return torch.from_numpy(np.stack([self._noise[i : i + self.row_bytes] for i in indices]))

    def fingerprint(self) -> str:
        """What the rows are made from."""
        return f"noise {self.rows} {self.row_bytes}"


def prepare(folder: Path, *, rows: int, row_bytes: int) -> DiskTier:
    """A full tier of that many rows under a folder."""
    tier = DiskTier(Noise(rows, row_bytes), folder, cap_bytes=2 * rows * row_bytes + (64 << 20))
    tier.fill()
    if not tier.complete:
        raise BenchFailed(f"the disk tier could not be filled: {tier.why}")
    return tier


def rows_file(tier: DiskTier, folder: Path) -> Path:
    """The file that the tier's rows lie in, one behind the other if their size is a whole number of pages."""
    if tier.content.stride != tier.layout.row_bytes:
        raise BenchFailed(
            f"rows of {tier.layout.row_bytes} bytes lie {tier.content.stride} apart: use whole pages"
        )
    return folder / tier.content.key / ROWS


def measure_cold(
    folder: Path,
    *,
    rows: int = 8192,
    row_bytes: int = 98_304,
    batch: int = 256,
    rounds: int = 5,
    seconds: float = 0.0,
) -> list[dict[str, float]]:
    """GB/s of random rows from the disk itself, by way; a dict a round, the ways in turns.

    `stoker` is a feed over the tier, `first` the same in its first epoch, in which every row is checked;
    `tier` reads one batch after the other; `direct_1` to `direct_32` are O_DIRECT reads in flight, each made
    by a thread, `queue_1` to `queue_32` as many in the kernel's own queue, where it has one. All read the
    same rows in the feed's order. At least so many rounds, and for so long.
    """
    tier = prepare(folder, rows=rows, row_bytes=row_bytes)
    path = rows_file(tier, folder)
    feed = _open_feed(folder, rows, row_bytes, batch)
    evict(path)
    _drain(iter(feed))
    # What such a limit reads into: as a feed does, a batch that was used before.
    memory = fresh_rows(batch, row_bytes)
    memory.fill(0)
    reads: dict[str, Callable[[Path, Indices, Bytes, int], None]] = {"direct": read_direct}
    if has_queue(path):
        reads["queue"] = read_queued
    found: list[dict[str, float]] = []
    began = time.monotonic()
    try:
        while len(found) < rounds or time.monotonic() - began < seconds:
            # The feed's next epoch: its first was the one above.
            order = [shard.samples for shard in _order(rows, batch).shards(len(found) + 1)]
            fresh = _open_feed(folder, rows, row_bytes, batch)
            ways: dict[str, Callable[[], None]] = {
                "stoker": lambda: _drain(iter(feed)),
                "first": lambda fresh=fresh: _drain(iter(fresh)),  # type: ignore[misc]
                "tier": lambda order=order: _drain(map(tier.read, order)),  # type: ignore[misc]
            }
            numbers = np.concatenate(order)
            for name, read in reads.items():
                for count in IN_FLIGHT:
                    ways[f"{name}_{count}"] = partial(read, path, numbers, memory, count)
            found.append({name: _rate(way, path, rows * row_bytes) for name, way in ways.items()})
            fresh.close()
    finally:
        feed.close()
        tier.close()
    return found


def _rate(way: Callable[[], None], path: Path, size: int) -> float:
    evict(path)
    began = time.perf_counter()
    way()
    return size / (time.perf_counter() - began) / 1e9


def _open_feed(folder: Path, rows: int, row_bytes: int, batch: int) -> Feed:
    """As a user makes one; the tier under it is full."""
    source = Noise(rows, row_bytes)
    return Feed(source, batch_size=batch, shuffle=True, tier="source", cache=folder, device="cpu")


def _order(rows: int, batch: int) -> Order:
    """The order of such a feed."""
    return Order(length=rows, batch_size=batch, shuffle=True)


def evict(path: Path) -> None:
    """Have the page cache forget a file; BenchFailed where it does not: what a process has mapped stays."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = _count_cached(file.fileno())
    if left:
        raise BenchFailed(f"{left} pages of {path} stayed in the page cache: what is read now is not cold")


def _count_cached(file: int) -> int:
    """Pages of a file in the page cache."""
    size = os.fstat(file).st_size
    mapped = np.frombuffer(mmap.mmap(file, size, prot=mmap.PROT_READ), np.uint8)
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    told = ctypes.CDLL(None, use_errno=True).mincore(
        ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
    )
    if told != 0:
        raise BenchFailed(f"the kernel does not say what it has cached: {os.strerror(ctypes.get_errno())}")
    return int(np.count_nonzero(pages & 1))


def _drain(batches: Iterator[object]) -> None:
    for _ in batches:
        pass


def has_queue(path: Path) -> bool:
    """Whether the kernel has a queue of reads for us."""
    with _opened(path) as file:
        try:
            DirectQueue(file)
        except OSError:
            return False
    return True


def read_direct(path: Path, numbers: Indices, memory: Bytes, in_flight: int) -> None:
    """That many threads, each reading the next row into its place: nothing but the disk."""
    row_bytes, places = memory.shape[1], list(memory)
    left = iter(list(enumerate(numbers.tolist())))  # a list's iterator hands each item out once
    whole = 0
    counting = threading.Lock()

    def work() -> None:
        nonlocal whole
        mine = 0
        for at, number in left:
            mine += os.preadv(file, [places[at % len(places)]], number * row_bytes) == row_bytes
        with counting:
            whole += mine

    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    with _opened(path) as file:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _require(whole, len(numbers), path)


def read_queued(path: Path, numbers: Indices, memory: Bytes, in_flight: int) -> None:
    """By the kernel's queue with that many in it, which the disk tier reads by with more."""
    rows, row_bytes = memory.shape
    vectors = np.empty((len(numbers), 1, 2), np.uint64)
    vectors[:, 0, 0] = memory.ctypes.data + np.arange(len(numbers)) % rows * row_bytes
    vectors[:, 0, 1] = row_bytes
    with _opened(path) as file:
        queue = DirectQueue(file, in_flight=in_flight)
        done = queue.read(numbers * row_bytes, vectors, row_bytes, [memory, vectors])
        whole = sum(int(good.sum()) for _, good in done)
    _require(whole, len(numbers), path)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Past the page cache."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        yield file
    finally:
        os.close(file)


def _require(whole: int, asked: int, path: Path) -> None:
    if whole != asked:
        raise BenchFailed(f"{asked - whole} of {asked} rows of {path} could not be read past the page cache")
