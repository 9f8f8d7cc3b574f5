"""The two-level shuffle: blocks of consecutive samples in random order, their samples mixed group by group.

A block is what is read at once. The blocks of an epoch are permuted; every `group_size` of them in a row
are a group, and the samples of a group are permuted together. So a reader that holds one group, and fetches
the next one behind it, reads every block once an epoch, whole.

How far it mixes: a batch's samples come from `group_size` blocks drawn at random from the whole set (from
up to twice as many where one group ends and the next begins), and two samples of one block are never
further apart than a group is long. Where neighbours in the source are no more alike than others, that is
as good as a full shuffle; where they are (sorted by class, frames of one film), take small blocks in large
groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stoker.feed.draws import key
from stoker.feed.permutation import invert, permute


@dataclass(frozen=True, kw_only=True)
class BlockShuffle:
    """One epoch's two-level shuffle of 0 to length - 1, by random access.

    The last block may be short. Wherever it comes in the epoch's row of blocks, all that follows comes
    earlier by what it lacks; the rest is division.
    """

    length: int
    block_size: int
    group_size: int
    seed: int
    epoch: int

    def permute(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number that stands at each of these positions of the epoch; ascending ones cost least."""
        if not positions.size:
            return positions
        mixed = np.empty_like(positions)
        for group, part in _runs(self._group_of(positions)):
            start, stop = self._start_of_group(group), self._start_of_group(group + 1)
            own = key(self.seed, "group", self.epoch, group)
            mixed[part] = start + permute(positions[part] - start, stop - start, own)
        # Where each block of the row stands in the source, by slot: there are far fewer than positions.
        slots = self._slot_of(mixed)
        first, last = int(slots.min()), int(slots.max())
        row = np.arange(first, last + 1, dtype=np.int64)
        moved = self._blocks_at(row) * self.block_size - self._start_of(row)
        return mixed + moved[slots - first]

    def blocks(self, start: int, stop: int) -> NDArray[np.int64]:
        """The blocks of all groups that positions start to stop - 1 lie in, group after group."""
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        first, last = self._group_of(np.array([start, stop - 1], dtype=np.int64)).tolist()
        end = min((last + 1) * self.group_size, self.count)
        return self._blocks_at(np.arange(first * self.group_size, end, dtype=np.int64))

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return -(-self.length // self.block_size)

    @cached_property
    def _key(self) -> int:
        return key(self.seed, "blocks", self.epoch)

    @cached_property
    def _short_slot(self) -> int:
        """Where the last block, the only one that may be short, comes in the epoch's row of blocks."""
        return int(invert(np.array([self.count - 1]), self.count, self._key)[0])

    @cached_property
    def _lack(self) -> int:
        """How many samples the last block has too few."""
        return self.count * self.block_size - self.length

    def _blocks_at(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return permute(slots, self.count, self._key)

    def _start_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return slots * self.block_size - self._lack * (slots > self._short_slot)

    def _slot_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        end_of_short = (self._short_slot + 1) * self.block_size - self._lack
        return (places + self._lack * (places >= end_of_short)) // self.block_size

    def _group_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._slot_of(positions) // self.group_size

    def _start_of_group(self, group: int) -> int:
        slot = min(group * self.group_size, self.count)
        return slot * self.block_size - self._lack * (slot > self._short_slot)


def _runs(groups: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Each stretch of one group, and where it is."""
    changes = (np.flatnonzero(np.diff(groups)) + 1).tolist()
    for start, stop in pairwise([0, *changes, groups.size]):
        yield int(groups[start]), slice(start, stop)
