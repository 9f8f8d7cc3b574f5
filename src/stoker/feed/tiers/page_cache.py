"""What the page cache holds of a file of rows, and copies of it made through a memory map.

By a map, because one call copies a whole batch without the interpreter: 13.7 GB/s on 2 cores at 98 KB a row,
where a read a row comes to 9.1 (the kernel's own copying is slower too).

A map answers a failing disk, or a file cut short, with SIGBUS, which ends the training; a read answers with
an error. So before each batch the file is seen to have its full length, and the map is used only for rows
that were found in memory: each by itself just before, or all of the file within the last second. What is left
is a file that is cut short in the milliseconds of a copy, and a row that was pushed out of memory after the
look and then cannot be read from the disk any more.

All of the file, because a look takes 1.6 us whether at a page or at a row, but 3.4 ns a page in a long
stretch that is mapped already (75 if not). In one run rows of 98 KB came at 12.4 GB/s so, each looked at by
itself at 9.6, and at 11.8 with a look at 32 of 256, which does not tell about the others.

Asked by mincore and not by a read that must not wait: such a read has the kernel fetch what is missing, and a
row read past the cache right after comes from the disk again. Measured on cold rows of 98 KB, in one run:
1.67 times the bytes from the disk, 1.9 GB/s against 3.2.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.feed.sources.base import Indices

# Rows of a batch that are looked up to know that none is there, if none was in the batch before: where some
# is after all, it is read from the disk for nothing, and no harm done.
_PROBES = 32
# A look at all of the file goes by so many pages at a time, and ends where one is missing, or when it has
# taken so long: 59 M pages that are mapped (240 GB), or 2.7 M that are not (11 GB).
_STRETCH = 16384
_LONGEST_LOOK_S = 0.2
# That something is missing holds for so many times as long as the look took, so that looking takes 2% of a
# thread's time; that all is there for a second, as the kernel may need the memory for something else: looking
# at 60 GB then takes 5%.
_LOOKS_APART = 50
_HOLDS_S = 1.0
# Copied block by block: blocks smaller than this are worth a read a row instead, unless they are few.
_LEAST_BLOCK = 256
_FEW_BLOCKS = 64


class PageCache:
    """Of one open file of rows, `stride` bytes from one to the next.

    The kernel tells what it holds of a file only to who may write to it; to others it says: everything.
    """

    def __init__(self, file: int, *, stride: int) -> None:
        self._file, self._stride = file, stride
        self._size = os.fstat(file).st_size
        self._map = mmap.mmap(file, self._size, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        # Whether none of the batch before was there; and whether all of the file was, which holds until then.
        self._none, self._all = False, (0.0, False)
        self._looking = threading.Lock()
        # Under the interpreter's lock: giving it away would take longer than the call.
        self._mincore = _mincore(ctypes.PyDLL(None))
        self._mincore_freely = _mincore(ctypes.CDLL(None))

    def held(self, numbers: Indices) -> NDArray[np.bool_]:
        """Of each row, whether all of it was found there; where hardly any is, one may be missed."""
        if os.fstat(self._file).st_size != self._size:
            return np.zeros(len(numbers), np.bool_)
        if self._holds_all():
            return np.ones(len(numbers), np.bool_)
        if self._none and not self._look_up(numbers[:: -(-len(numbers) // _PROBES) or 1]).any():
            return np.zeros(len(numbers), np.bool_)
        found = self._look_up(numbers)
        self._none = not found.any()
        return found

    def _holds_all(self) -> bool:
        until, found = self._all
        began = time.monotonic()
        if began < until:
            return found
        if not self._looking.acquire(blocking=False):
            return False  # another thread will know
        try:
            found = self._look_at_all(began + _LONGEST_LOOK_S)
            holds = _HOLDS_S if found else _LOOKS_APART * (time.monotonic() - began)
            self._all = began + holds, found
        finally:
            self._looking.release()
        return found

    def _look_at_all(self, until: float) -> bool:
        """Whether all of the file was found there by then."""
        pages, begin = np.empty(_STRETCH, np.uint8), self._bytes.ctypes.data
        for offset in range(0, self._size, _STRETCH * mmap.PAGESIZE):
            size = min(_STRETCH * mmap.PAGESIZE, self._size - offset)
            if self._mincore_freely(begin + offset, size, pages.ctypes.data) != 0:
                return False
            if not np.all(pages[: -(-size // mmap.PAGESIZE)] & 1) or time.monotonic() > until:
                return False
        return True

    def _look_up(self, numbers: Indices) -> NDArray[np.bool_]:
        pages = np.ones((len(numbers), self._stride // mmap.PAGESIZE + 2), np.uint8)
        begin, told, step = self._bytes.ctypes.data, pages.ctypes.data, pages.strides[0]
        for at, number in enumerate(numbers.tolist()):
            offset = number * self._stride
            first = offset // mmap.PAGESIZE * mmap.PAGESIZE
            if self._mincore(begin + first, offset + self._stride - first, told + at * step) != 0:
                pages[at] = 0
        there: NDArray[np.bool_] = np.all(pages & 1, axis=1)
        return there

    def can_take(self, pieces: Sequence[slice]) -> bool:
        """Whether rows consist of blocks that are worth it, for each of these pieces of them."""
        return all(
            not size or size // block <= _FEW_BLOCKS or block >= _LEAST_BLOCK
            for size, block in ((piece.stop - piece.start, self._block(piece)) for piece in pieces)
        )

    def _block(self, piece: slice) -> int:
        return gcd(self._stride, piece.start, piece.stop)

    def take(self, numbers: Indices, piece: slice, out: NDArray[np.uint8], places: Indices) -> None:
        """Copy a piece of each of these rows into its place among rows of bytes."""
        size = piece.stop - piece.start
        if not size:
            return
        into = out[places[0] : places[-1] + 1]
        in_one = len(into) == len(places) and into.flags.c_contiguous
        if not in_one:
            into = np.empty((len(places), size), np.uint8)
        block = self._block(piece)
        begins = numbers * (self._stride // block) + piece.start // block
        blocks = (begins[:, None] + np.arange(size // block)).reshape(-1)
        # Numpy holds no lock while it takes, and with "raise" it would copy everything twice.
        np.take(self._bytes.reshape(-1, block), blocks, axis=0, out=into.reshape(-1, block), mode="clip")
        if not in_one:
            out[places] = into


def _mincore(library: ctypes.CDLL) -> Any:
    call = library.mincore
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return call
