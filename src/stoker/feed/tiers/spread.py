"""A rank's part of the samples that all ranks hold together: each in any row, until another rank has it.

The memory is taken once, and stays: between epochs samples change places with those of other ranks, a bounded
number at a time. Which ones is not decided here (`exchange`), nor how they travel (`company`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.feed.exchange import rows_of, share_of
from stoker.feed.layout import Layout
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.rows import Rows, bring

# What goes out, and what comes in, at one go: enough for a link to be at its speed, little beside the memory
# of a card. At least one sample, and one more a rank.
_ROUND_BYTES = 64 << 20

# Sends rows of bytes to the other ranks, and gives what they have sent.
Through = Callable[[torch.Tensor], torch.Tensor]


class SpreadRows:
    """Memory for one rank's part of `samples` samples. `rows` is how many it has room for.

    `want` says which ones are to be read: for those there is room until the next exchange, and others are not
    kept.
    """

    def __init__(self, layout: Layout, samples: int, ranks: int, device: torch.device) -> None:
        self.rows = rows_of(samples, ranks)
        self._memory = Rows.allocate(layout, self.rows, device)
        self.layout, self.device = layout, self._memory.device
        self._row_of = np.full(samples, -1, np.int64)
        # Rows that are free: the first so many.
        self._free, self._vacant = np.arange(self.rows, dtype=np.int64), self.rows
        self._is_wanted = np.zeros(samples, np.bool_)

    @staticmethod
    def bytes_needed(layout: Layout, samples: int, ranks: int) -> int:
        """What a rank's part takes of its device at the most: the samples, and those on their way."""
        on_the_way = 2 * (min(per_round(layout), share_of(samples, ranks)) + ranks)
        return Rows.bytes_needed(layout, rows_of(samples, ranks) + on_the_way)

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def bytes(self) -> int:
        """What the samples take of the device, without those on their way."""
        return Rows.bytes_needed(self.layout, self.rows)

    @property
    def complete(self) -> bool:
        """Whether all that are to be read are held."""
        return bool((self._row_of[self._is_wanted] >= 0).all())

    def want(self, places: Indices) -> None:
        """These, and no others, are to be read next."""
        self._is_wanted[:] = False
        self._is_wanted[places] = True

    def held(self, places: Indices) -> NDArray[np.bool_]:
        """Of each of these samples, whether it is held."""
        return self.find(places) >= 0

    def find(self, places: Indices) -> Indices:
        """The rows that these samples are in; -1 for one that is not held."""
        return self._row_of[places]

    def put(self, places: Indices, batch: Any) -> None:
        """Keep the batch's rows as these samples, if they are wanted; what is held stays as it is."""
        numbers, at = np.unique(places, return_index=True)
        new = ~self.held(numbers) & self._is_wanted[numbers]
        numbers, at = numbers[new], at[new]
        if not np.array_equal(at, np.arange(len(places))):
            chosen = torch.from_numpy(at)
            leaves = self.layout.flatten(batch, len(places))
            given = [leaf.index_select(0, chosen.to(leaf.device)) for leaf in leaves]
            batch = self.layout.unflatten(given)
        rows = self._vacant_rows(len(numbers))
        self._memory.put(rows, batch)
        self._vacant -= len(rows)  # only now: there may have been no memory to put them there
        self._row_of[numbers] = rows

    def get(self, rows: torch.Tensor) -> Any:
        """The batch in these rows, as `find` gave them; on this memory's device, and the caller's own."""
        return self._memory.get(rows)

    def get_each(self, rows: torch.Tensor, sizes: Sequence[int]) -> list[Any]:
        """Batches of these sizes by one gather; they share an allocation."""
        return self._memory.get_each(rows, sizes)

    def drop(self, places: Indices) -> None:
        """Hold these samples no longer."""
        rows = self._row_of[places]
        self._memory.opened()[1][rows] = 0
        self._row_of[places] = -1
        self._free[self._vacant : self._vacant + len(rows)] = rows
        self._vacant += len(rows)

    def trade(self, sent: Indices, gone: Indices, received: Indices, through: Through) -> None:
        """Send samples out, hold those that are `gone` no longer, and take in what comes in their place."""
        words, flags = self._memory.opened()
        out = bring([self._row_of[sent]], self.device)
        self.drop(gone)
        rows = self._vacant_rows(len(received))
        self._vacant -= len(rows)
        into = bring([rows], self.device)
        for leaf in words:
            if leaf.shape[1]:  # a leaf without numbers is nothing to send
                leaf.index_copy_(0, into, through(leaf.index_select(0, out)))
        flags[rows] = 1
        self._row_of[received] = rows

    def try_room(self, sent: int, received: int) -> None:
        """Take what a trade of so many samples needs beside the rows, and let go of it: torch keeps it ready.

        torch.OutOfMemoryError where it cannot be had.
        """
        words, _ = self._memory.opened()
        numbers = torch.empty(sent + received, dtype=torch.int64, device=self.device)
        for leaf in words:  # one at a time, as they are traded
            both = [leaf.new_empty((count, leaf.shape[1])) for count in (sent, received)]
            del both
        del numbers

    def close(self) -> None:
        """Let go of the memory; batches handed out stay good."""
        self._memory.close()

    def _vacant_rows(self, count: int) -> Indices:
        """So many rows that are free."""
        if count > self._vacant:
            raise AssertionError(
                f"{count} samples for {self._vacant} free rows of {self.rows}: a fault in Stoker, "
                "please report it"
            )
        return self._free[self._vacant - count : self._vacant].copy()


def per_round(layout: Layout) -> int:
    """How many samples go out, and come in, at one go."""
    return max(1, _ROUND_BYTES // max(1, Rows.bytes_needed(layout, 1)))


def carry(rows: Rows | SpreadRows, to: Rows | SpreadRows, among: Indices | None = None) -> None:
    """What is held there is held here too; all of it, or what is among these."""
    among = np.arange(len(rows), dtype=np.int64) if among is None else among
    held = among[rows.held(among)]
    step = max(1, _ROUND_BYTES // max(1, Rows.bytes_needed(rows.layout, 1)))
    for begin in range(0, len(held), step):
        some = held[begin : begin + step]
        to.put(some, rows.get(torch.from_numpy(rows.find(some)).to(rows.device)))
