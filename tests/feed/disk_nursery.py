"""What the children of test_disk_kill.py do: each fills a cache, and may be killed at it."""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feed.numbered import Numbered
from feed.nursery import serve
from stoker.feed.sources.base import Indices
from stoker.feed.tiers import pack
from stoker.feed.tiers.disk import DiskTier

SAMPLES, NUMBERS = 512, 12_000
PIECE = 256
# The bytes of the flags: whether it works, whether a row was written, whether rows are being written; when
# the first write began and the last one ended.
STARTED, WROTE, WRITING, FIRST, LAST = 0, 1, 2, slice(8, 16), slice(16, 24)
DAMAGED = 3


class InMemory(Numbered):
    """The same samples, made beforehand: a child's time is to go into writes."""

    made: Any = None

    def read(self, indices: Indices) -> Any:
        """From memory."""
        chosen = torch.as_tensor(np.asarray(indices))
        return {name: tensor[chosen] for name, tensor in self.made.items()}


def make_source(samples: int = SAMPLES, numbers: int = NUMBERS, version: str = "a") -> InMemory:
    """A source that all children share."""
    source = InMemory(samples, numbers=numbers, version=version)
    source.made = Numbered(samples, numbers=numbers, version=version).read(np.arange(samples))
    return source


def tell_writes(flags: mmap.mmap) -> None:
    """Have the flags say when rows go to the disk; in small pieces, so that a kill can fall within a row."""
    plain_write, plain_pwritev = pack.Pack.write, os.pwritev

    def write(self: pack.Pack, *words: Any) -> int:
        try:
            return plain_write(self, *words)
        finally:
            flags[WRITING] = 0
            flags[LAST] = struct.pack("d", time.monotonic())

    def pwritev(file: int, parts: Any, offset: int, how: int = 0, /) -> int:
        if not flags[WROTE]:
            flags[FIRST] = struct.pack("d", time.monotonic())
        flags[WROTE] = flags[WRITING] = 1
        return plain_pwritev(file, [parts[0][:PIECE]], offset, how)

    pack.Pack.write = write  # type: ignore[method-assign, assignment]
    os.pwritev = pwritev


def work(source: InMemory, flags: mmap.mmap, words: list[str]) -> int:
    """Fill the cache ROOT in a MODE, by blocks or as a shuffled epoch of SEED does; read all of it."""
    root, mode, seed = Path(words[0]), words[1], int(words[2])
    tell_writes(flags)
    flags[STARTED] = 1
    tier = DiskTier(source, root, cap_bytes=10**9, reserve_bytes=1 << 20)
    batches = np.array_split(np.random.default_rng(seed).permutation(SAMPLES), 12)
    if mode == "fill":
        tier.fill()
    for batch in batches:
        got, expected = tier.read(batch), source.read(batch)
        if not all(torch.equal(got[name], expected[name]) for name in expected):
            return DAMAGED
    return 0 if tier.complete and not tier.damaged else DAMAGED


if __name__ == "__main__":
    everything = make_source()
    serve(lambda flags, words: work(everything, flags, words))
