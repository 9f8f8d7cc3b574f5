"""Files that stay in memory as they are: compressed images that wait undecoded.

Of ImageNet a file has 110 KB, and its pixels 560: where the pixels of a set do not fit into memory, its files
may. They are decoded anew each time, by the threads that read ahead.

Files differ in length, so they lie in blocks: one after the other in rows of equal size, which all processes
of a machine share (`tiers/ram.py`). Where a file begins is known from the listing.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from stoker.errors import NoRoom
from stoker.facts.words import size
from stoker.feed.layout import Layout
from stoker.feed.per_process import PerProcess
from stoker.feed.ranks import find_ranks
from stoker.feed.sources.base import told_apart
from stoker.feed.sources.listing import Listing
from stoker.feed.sources.objects import Store
from stoker.feed.tiers.pack import Bytes, Content
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.write_through import WriteThrough

# A file's last block is half empty, on the average: 2% of a file of 110 KB.
_BLOCK = 4096


class HeldFiles:
    """A store whose files come from memory once they were read. NoRoom where they do not fit."""

    def __init__(self, store: Store | WriteThrough, listing: Listing) -> None:
        self.store = store
        self._listing = listing
        self._begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(_count_blocks(listing))])
        content = Content(
            fingerprint=told_apart(f"files {listing.fingerprint()}", _origin(store).url),
            transform="",
            samples=int(self._begins[-1]),
            layout=Layout.of(torch.zeros((1, _BLOCK), dtype=torch.uint8)),
        )
        self._rows = PerProcess(partial(_open, content))
        self._rows.get()

    @staticmethod
    def bytes_needed(listing: Listing) -> int:
        """What the files take in memory."""
        return int(_count_blocks(listing).sum()) * _BLOCK

    def fetch(self, keys: Sequence[str], sizes: Sequence[int] | None = None) -> Iterator[memoryview]:
        """All of these files, in this order: from memory; else from the store, many at a time, and kept.

        Their sizes are those of the listing.
        """
        numbers = list(map(self._number, keys))
        rows = self._rows.get()
        missing = [number for number in dict.fromkeys(numbers) if not rows.holds(self._blocks(number))]
        names = [self._listing.keys[number] for number in missing]
        fetched = zip(missing, self.store.fetch(names, self._listing.sizes[missing].tolist()), strict=True)
        absent = set(missing)
        for number in numbers:
            if number in absent:
                absent.discard(number)
                _, data = next(fetched)
                self._keep(rows, number, data)
                yield data
            else:
                yield self._held(rows, number)

    def _number(self, key: str) -> int:
        number = self._listing.number(key)
        if number is None:
            raise KeyError(f"{key!r} is not among the files of this source")
        return number

    def _blocks(self, number: int) -> NDArray[np.int64]:
        return np.arange(self._begins[number], self._begins[number + 1])

    def _keep(self, rows: SharedRows, number: int, data: memoryview) -> None:
        blocks = self._blocks(number)
        padded = np.zeros((len(blocks), _BLOCK), np.uint8)
        padded.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
        rows.put(blocks, torch.from_numpy(padded))

    def _held(self, rows: SharedRows, number: int) -> memoryview:
        held: torch.Tensor = rows.get(torch.from_numpy(self._blocks(number)))
        data: Bytes = held.numpy().reshape(-1)[: int(self._listing.sizes[number])]
        return data.data

    def close(self) -> None:
        """Let go of the memory."""
        rows = self._rows.drop()
        if rows is not None:
            rows.close()


def _origin(store: Store | WriteThrough) -> Store:
    return store.store if isinstance(store, WriteThrough) else store


def _count_blocks(listing: Listing) -> NDArray[np.int64]:
    blocks: NDArray[np.int64] = -(-listing.sizes // _BLOCK)
    return blocks


def _open(content: Content) -> SharedRows:
    """In memory of its own where no other process needs it, and it cannot be shared."""
    alone = find_ranks(None, None).on_node == 1 and get_worker_info() is None
    return SharedRows(content, alone=alone)


def hold_if_they_fit(
    store: Store | WriteThrough, listing: Listing, free: int | None
) -> tuple[HeldFiles | None, str]:
    """The files in memory if they fit into what is free there, and what is to be said of it."""
    needed = HeldFiles.bytes_needed(listing)
    if free is None:
        return None, ""
    if needed > free:
        return None, f"nor do the files as they are: {size(needed)}"
    try:
        return HeldFiles(store, listing), f"the files are held in RAM as they are ({size(needed)})"
    except NoRoom as error:
        return None, f"nor could the files be held as they are: {error}"
