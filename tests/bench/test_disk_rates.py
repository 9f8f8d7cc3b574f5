"""What the disk benchmark calls cold is."""

import mmap
from pathlib import Path

import pytest

from stoker.bench.disk_rates import evict
from stoker.errors import BenchFailed


def test_what_stays_in_the_page_cache_is_not_measured_as_cold(tmp_path: Path) -> None:
    """A page that a process has mapped cannot be evicted: that is told, and not timed."""
    path = tmp_path / "rows"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == 0
        with pytest.raises(BenchFailed, match="stayed in the page cache"):
            evict(path)
