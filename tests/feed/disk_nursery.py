"""A process of few imports that forks children on demand, each of which fills a cache and may be killed.

Forked, a child works at once; started, it would import torch for a second first, and moments drawn over the
time of its writes would mostly miss them. One line of words a request, one line back:

    start ROOT FLAGS MODE SEED    the child's pid
    wait PID                      its exit code, negative for a signal
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feed.numbered import Numbered
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


def make_source() -> InMemory:
    """The source that all children share."""
    source = InMemory(SAMPLES, numbers=NUMBERS)
    source.made = Numbered(SAMPLES, numbers=NUMBERS).read(np.arange(SAMPLES))
    return source


def tell_writes(flags: mmap.mmap) -> None:
    """Have the flags say when rows go to the disk; in small pieces, so that a kill can fall within a row."""
    plain_write, plain_pwrite = pack.Pack.write, os.pwrite

    def write(self: pack.Pack, *words: Any) -> int:
        try:
            return plain_write(self, *words)
        finally:
            flags[WRITING] = 0
            flags[LAST] = struct.pack("d", time.monotonic())

    def pwrite(file: int, data: Any, offset: int) -> int:
        if not flags[WROTE]:
            flags[FIRST] = struct.pack("d", time.monotonic())
        flags[WROTE] = flags[WRITING] = 1
        return plain_pwrite(file, data[:PIECE], offset)

    pack.Pack.write = write  # type: ignore[method-assign, assignment]
    os.pwrite = pwrite


def work(source: InMemory, root: Path, flags: mmap.mmap, mode: str, seed: int) -> int:
    """Fill the cache: by blocks, or as a shuffled first epoch does; then read all of it."""
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


def main() -> None:
    """Answer requests until there are no more."""
    torch.set_num_threads(1)
    source = make_source()
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(int(words[0]), 0)[1])
        else:
            with Path(words[1]).open("r+b") as file:
                flags = mmap.mmap(file.fileno(), 0)
            answer = os.fork()
            if answer == 0:
                code = 1
                try:
                    code = work(source, Path(words[0]), flags, words[2], int(words[3]))
                finally:
                    os._exit(code)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
