"""What the disk benchmark calls cold is."""

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.bench.disk_rates import evict, has_queue, read_direct, read_queued
from stoker.errors import BenchFailed
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.pack import PAGE, Bytes

Read = Callable[[Path, Indices, Bytes, int], None]
ROWS, ROW_BYTES = 40, 3 * PAGE


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows of pages, each full of its number."""
    path = tmp_path / "rows"
    path.write_bytes(np.repeat(np.arange(ROWS, dtype=np.uint8), ROW_BYTES).tobytes())
    if not has_queue(path):
        pytest.skip("no queue of reads here")
    return path


@pytest.mark.parametrize("read", [read_direct, read_queued])
@pytest.mark.parametrize("in_flight", [1, 2, 32])
def test_the_limit_reads_every_row_that_was_asked_for(rows: Path, read: Read, in_flight: int) -> None:
    """Into the memory of a batch, the k-th into place k, and round again."""
    memory = fresh_rows(16, ROW_BYTES)
    order = np.random.default_rng(0).permutation(ROWS)
    read(rows, order[:16], memory, in_flight)
    assert np.array_equal(memory, np.repeat(order[:16, None], ROW_BYTES, 1))
    read(rows, order, memory, in_flight)
    assert set(memory[:, 0].tolist()) <= set(order.tolist())


@pytest.mark.parametrize("read", [read_direct, read_queued])
def test_rows_that_do_not_come_are_no_limit(rows: Path, read: Read) -> None:
    """A read behind the end is fast, and told."""
    with pytest.raises(BenchFailed, match=r"1 of 3 rows of .* could not be read"):
        read(rows, np.array([0, ROWS, 1]), fresh_rows(16, ROW_BYTES), 2)


def test_what_stays_in_the_page_cache_is_not_measured_as_cold(tmp_path: Path) -> None:
    """A page that a process has mapped cannot be evicted: that is told, and not timed."""
    path = tmp_path / "rows"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == 0
        with pytest.raises(BenchFailed, match="stayed in the page cache"):
            evict(path)
