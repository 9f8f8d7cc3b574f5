"""How fast rows come from a disk when the page cache has none: the disk tier beside the disk's own limit.

Every way reads the same rows in the same order, in turns. Before each the page cache forgets the file; what
the machine under a virtual disk keeps is out of reach, for all ways alike.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import BenchFailed
from stoker.feed import Feed
from stoker.feed.order import Order
from stoker.feed.sources.base import Indices, Source
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import ROWS

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
    `tier` reads one batch after the other; `direct_1` to `direct_32` are O_DIRECT reads in flight. All read
    the same rows in the feed's order. At least so many rounds, and for so long.
    """
    tier = prepare(folder, rows=rows, row_bytes=row_bytes)
    path = rows_file(tier, folder)
    feed = _open_feed(folder, rows, row_bytes, batch)
    evict(path)
    _drain(iter(feed))
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
            for count in IN_FLIGHT:
                ways[f"direct_{count}"] = partial(_read_direct, path, order, row_bytes, count)
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


def _read_direct(path: Path, order: Sequence[Indices], row_bytes: int, in_flight: int) -> None:
    """That many threads, each reading the next row into a buffer of its own: nothing but the disk."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    numbers = iter([number for batch in order for number in batch.tolist()])

    def work() -> None:
        buffer = mmap.mmap(-1, row_bytes)
        for number in numbers:
            os.preadv(file, [buffer], number * row_bytes)

    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.close(file)
