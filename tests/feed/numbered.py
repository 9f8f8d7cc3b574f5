"""A source for the tests of tiers: samples made from their numbers, so that every bit of them is known."""

from typing import Any

import numpy as np
import torch

from stoker.feed.sources.base import Indices, Source


class Numbered(Source):
    """Sample i is a row of noise seeded by i, and i itself; counts what it is asked for."""

    def __init__(self, samples: int, *, numbers: int = 5000, version: str = "a") -> None:
        self.samples, self.numbers, self.version = samples, numbers, version
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def read(self, indices: Indices) -> Any:
        """The samples; floats from a counter-based mix, quick enough not to be what a test waits for."""
        self.asked += [int(index) for index in indices]
        seeds = np.asarray(indices, np.uint64)[:, None] + np.uint64(ord(self.version[0]) << 32)
        mixed = np.left_shift(seeds, 20, dtype=np.uint64) + np.arange(self.numbers, dtype=np.uint64)
        mixed = np.right_shift(mixed * np.uint64(0x9E3779B97F4A7C15), 40, dtype=np.uint64)
        return {
            "values": torch.from_numpy(mixed.astype(np.float32)),
            "number": torch.as_tensor(np.array(indices, np.int64)),
        }

    def fingerprint(self) -> str:
        """The version."""
        return self.version


def assert_same(got: Any, expected: Any) -> None:
    """Two batches of such samples are bit-identical, and dense."""
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].is_contiguous()
        assert torch.equal(got[name], tensor), f"{name} differs"
