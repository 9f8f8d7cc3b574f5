"""What the tests of the disk tier share: tiers over numbered samples, checked bit by bit."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from feed.numbered import Numbered, assert_same
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import ROWS

GB = 10**9
# Kept free of the test machine's own limits.
TINY_RESERVE = 1 << 20


def tier_over(source: Numbered, root: Path, **settings: Any) -> DiskTier:
    return DiskTier(source, root, **({"cap_bytes": GB, "reserve_bytes": TINY_RESERVE} | settings))


def folder_of(tier: DiskTier) -> Path:
    return next(Path(word) for word in tier.why.split() if word.endswith(tier.content.key))


def check_all(tier: DiskTier) -> None:
    numbers = np.random.default_rng(0).permutation(len(tier))
    source = Numbered(len(tier), numbers=tier.source.numbers, version=tier.source.version)  # type: ignore[attr-defined]
    for part in np.array_split(numbers, 5):
        assert_same(tier.read(part), source.read(part))


def make_cold(tier: DiskTier) -> None:
    """Out of the page cache, as far as the kernel follows advice; closed, because what is mapped stays."""
    rows = folder_of(tier) / ROWS
    tier.close()
    with rows.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
