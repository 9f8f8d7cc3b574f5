"""What the page cache holds of a real file, of which the kernel was told to forget some."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker.feed.sources.base import Indices
from stoker.feed.tiers import page_cache
from stoker.feed.tiers.page_cache import PageCache

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asked as Linux is")
ROWS, STRIDE = 256, 16384
EVERY = np.random.default_rng(0).permutation(ROWS)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Rows of four pages, all in memory and on the disk; read without the pages around them."""
    opened = os.open(tmp_path / "rows", os.O_RDWR | os.O_CREAT)
    os.write(opened, np.repeat(np.arange(ROWS, dtype=np.uint8), STRIDE).tobytes())
    os.fsync(opened)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_RANDOM)
    yield opened
    os.close(opened)


def hold_only(file: int, rows: Indices) -> None:
    """Have the kernel forget all of the file, and read these rows."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    if PageCache(file, stride=STRIDE)._look_up(EVERY).any():
        pytest.skip("this file system forgets nothing")
    for row in rows.tolist():
        os.pread(file, STRIDE, row * STRIDE)


@pytest.fixture(params=["long", "short"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all of the file holds for no time; and once it even takes too long."""
    monkeypatch.setattr(page_cache, "_LOOKS_APART", 0)
    monkeypatch.setattr(page_cache, "_HOLDS_S", 0)
    if request.param == "short":
        monkeypatch.setattr(page_cache, "_LONGEST_LOOK_S", -1.0)


@pytest.mark.usefixtures("looks")
def test_a_row_that_is_not_there_is_never_said_to_be(file: int) -> None:
    """One in eight is there, all, all but one, none; then one, which may be missed."""
    asked = PageCache(file, stride=STRIDE)
    places = np.arange(ROWS)
    probed, but_one = places[::8], np.delete(places, 5)
    for there in (probed, places, but_one, places[:0], places[:0]):
        hold_only(file, EVERY[there])
        assert np.flatnonzero(asked.held(EVERY)).tolist() == there.tolist()
    hold_only(file, EVERY[but_one[1:2]])
    assert set(np.flatnonzero(asked.held(EVERY))) <= {1}


def test_that_all_is_there_is_not_looked_up_each_time(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds for a while, but not in a file that has been cut short."""
    monkeypatch.setattr(page_cache, "_HOLDS_S", 1e9)
    asked = PageCache(file, stride=STRIDE)
    assert asked.held(EVERY).all()
    monkeypatch.setattr(asked, "_look_at_all", None)
    assert asked.held(EVERY).all()
    os.ftruncate(file, (ROWS - 1) * STRIDE)
    assert not asked.held(EVERY).any()
