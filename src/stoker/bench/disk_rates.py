"""How fast rows come from a disk: the disk tier beside a memory map, plain reads and the disk's own limit.

Plain functions that return numbers, GB/s by name: every way reads the same rows in the same order, in turns,
several rounds, and the medians are what is returned.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from stoker.errors import BenchFailed
from stoker.feed.sources.base import Indices, Source
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import ROWS

IN_FLIGHT = (1, 2, 4, 8, 16, 32)
# Batches that a feed asks for ahead of the step.
_AHEAD = 2


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


def measure_warm(
    folder: Path, *, rows: int = 4096, row_bytes: int = 98_304, batch: int = 256, rounds: int = 5
) -> dict[str, float]:
    """Random batches from the page cache: `tier`, `memmap` (numpy's gather), `pread` (one by one)."""
    tier = prepare(folder, rows=rows, row_bytes=row_bytes)
    path = rows_file(tier, folder)
    mapped = np.memmap(path, np.uint8, "r", shape=(rows, row_bytes))
    file = os.open(path, os.O_RDONLY)

    def pread(numbers: Indices) -> None:
        out = np.empty((len(numbers), row_bytes), np.uint8)
        for place, number in enumerate(numbers.tolist()):
            os.preadv(file, [out[place].data], number * row_bytes)

    ways: dict[str, Callable[[Indices], object]] = {
        "tier": tier.read,
        "memmap": lambda numbers: torch.from_numpy(mapped[numbers]),
        "pread": pread,
    }
    try:
        return _take_turns(
            {name: lambda order, way=way: _drain(map(way, order)) for name, way in ways.items()},  # type: ignore[misc]
            _batches(rows, batch),
            row_bytes=row_bytes,
            rounds=rounds,
        )
    finally:
        os.close(file)
        tier.close()


def measure_cold(
    folder: Path, *, rows: int = 8192, row_bytes: int = 98_304, batch: int = 256, rounds: int = 3
) -> dict[str, float]:
    """Random rows from the disk itself: `tier`, and `direct_1` to `direct_32` O_DIRECT reads in flight.

    The tier reads by the batch, `tier_ahead` two batches at a time, as a feed does that reads ahead.
    """
    tier = prepare(folder, rows=rows, row_bytes=row_bytes)
    path = rows_file(tier, folder)
    ways: dict[str, Callable[[Sequence[Indices]], None]] = {
        "tier": lambda order: _drain(map(tier.read, order)),
        "tier_ahead": lambda order: _read_ahead(tier, order),
    }
    for count in IN_FLIGHT:
        ways[f"direct_{count}"] = lambda order, count=count: _read_direct(path, order, row_bytes, count)  # type: ignore[misc]
    try:
        return _take_turns(
            ways, _batches(rows, batch), row_bytes=row_bytes, rounds=rounds, before=lambda: evict(path)
        )
    finally:
        tier.close()


def evict(path: Path) -> None:
    """Have the page cache forget a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _batches(rows: int, batch: int) -> list[Indices]:
    order = np.random.default_rng(1).permutation(rows)
    return [order[at : at + batch] for at in range(0, rows, batch)]


def _drain(batches: Iterator[object]) -> None:
    for _ in batches:
        pass


def _read_ahead(tier: DiskTier, order: Sequence[Indices]) -> None:
    with ThreadPoolExecutor(_AHEAD) as pool:
        _drain(pool.map(tier.read, order))


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


def _take_turns(
    ways: dict[str, Callable[[Sequence[Indices]], None]],
    order: Sequence[Indices],
    *,
    row_bytes: int,
    rounds: int,
    before: Callable[[], None] | None = None,
) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    size = sum(map(len, order)) * row_bytes
    for _ in range(rounds):
        for name, way in ways.items():
            if before is not None:
                before()
            began = time.perf_counter()
            way(order)
            found[name].append(size / (time.perf_counter() - began) / 1e9)
    return {name: median(values) for name, values in found.items()}
