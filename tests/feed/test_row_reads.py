"""Which way each row of a batch comes from the disk tier: from the page cache, through it, or past it."""

import errno
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feed.disk_tiers import GB, check_all, make_cold, tier_over
from feed.numbered import Numbered
from stoker.facts import host
from stoker.facts.values import Host
from stoker.feed.tiers import row_reads
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.page_cache import PageCache
from stoker.feed.tiers.row_reads import RowReads

# A row of few bytes, of a piece that is not a whole number of pages, of one that is, and of an odd one.
SIZES = [3, 5000, 8192, 5001]


def no_queue(self: DirectQueue, file: int) -> None:
    raise OSError(errno.EPERM, "not allowed here")


def no_room(self: DirectQueue, offsets: Any, *given: Any) -> Any:
    raise OSError(errno.EAGAIN, "too many queues")


def no_bytes(self: DirectQueue, offsets: Any, *given: Any) -> Any:
    yield np.arange(len(offsets)), np.zeros(len(offsets), np.bool_)


@pytest.mark.parametrize("numbers", SIZES)
@pytest.mark.parametrize("held", ["all", "none", "some"])
@pytest.mark.parametrize("queue", ["", "none", "full", "fails"])
@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("askers", [1, 3])
def test_each_row_comes_its_own_way_and_is_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: int,
    held: str,
    queue: str,
    fits: bool,
    askers: int,
) -> None:
    """What the page cache holds, what it does not, batches of both, and a system without a queue of reads."""
    monkeypatch.setattr(RowReads, "_fits", lambda self: fits)
    monkeypatch.setattr(row_reads, "_ASKERS", askers)
    monkeypatch.setattr(row_reads, "_LEAST_ASKED", 5)
    shares = {"all": lambda rows: rows >= 0, "none": lambda rows: rows < 0, "some": lambda rows: rows % 3 > 0}
    monkeypatch.setattr(PageCache, "held", lambda self, rows: shares[held](rows))
    if queue:
        instead = {"none": no_queue, "full": no_room, "fails": no_bytes}[queue]
        monkeypatch.setattr(DirectQueue, "__init__" if queue == "none" else "read", instead)
    tier = tier_over(Numbered(200, numbers=numbers), tmp_path)
    tier.fill(range(150))
    check_all(tier)
    check_all(tier)
    assert (tier.hits, tier.misses, tier.damaged) == (350, 50, 0)


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each batch reads past the page cache, of those that do, by one thread."""
    monkeypatch.setattr(row_reads, "_ASKERS", 1)
    counts: list[int] = []
    whole = DirectQueue.read

    def count(self: DirectQueue, offsets: Any, *given: Any) -> Any:
        counts.append(len(offsets))
        return whole(self, offsets, *given)

    monkeypatch.setattr(DirectQueue, "read", count)
    return counts


def set_free_memory(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(host, "read", lambda: Host(system="tried", cpus=2, memory_free_bytes=size))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a queue of Linux")
@pytest.mark.parametrize("free", [100 * GB, 1 << 20, None])
def test_a_few_that_the_page_cache_has_lost_come_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past: list[int], free: int | None
) -> None:
    """So that it has them again, however large the set: past it, more would be lost with every epoch."""
    set_free_memory(monkeypatch, free)
    monkeypatch.setattr(PageCache, "held", lambda self, rows: rows % 20 > 0)
    tier = tier_over(Numbered(200, numbers=20_000), tmp_path)
    tier.fill()
    check_all(tier)
    assert (tier.hits, tier.damaged, past) == (200, 0, [])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a queue of Linux")
def test_a_set_larger_than_memory_is_read_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past: list[int]
) -> None:
    """Of which a part is there: the rest would only push that out."""
    set_free_memory(monkeypatch, 20 << 20)
    monkeypatch.setattr(PageCache, "held", lambda self, rows: rows % 2 > 0)
    tier = tier_over(Numbered(200, numbers=20_000), tmp_path)
    tier.fill()
    check_all(tier)
    assert (tier.hits, tier.damaged, sum(past)) == (200, 0, 100)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a queue of Linux")
def test_a_set_that_fits_into_memory_comes_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past: list[int]
) -> None:
    """On the disk only, most of it is read past the page cache at first; with some there, nothing is."""
    set_free_memory(monkeypatch, 100 * GB)
    tier = tier_over(Numbered(200, numbers=20_000), tmp_path)
    tier.fill()
    make_cold(tier)
    check_all(tier)
    if not past:
        pytest.skip("this file system forgets nothing, or has no reads past the page cache")
    assert past == [40, 40, 40, 40]  # of five batches, all but the first
    for _ in range(2):  # the same five: the first is there, and tells of the others
        check_all(tier)
    assert (tier.hits, tier.damaged, past) == (600, 0, [40, 40, 40, 40])
