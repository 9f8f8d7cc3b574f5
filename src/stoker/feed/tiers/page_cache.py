"""Which parts of a file the page cache holds, without reading any of it.

Asked by mincore and not by a read that must not wait: such a read has the kernel fetch what is missing, and a
row read past the cache right after comes from the disk again. Measured on cold rows of 98 KB, in one run:
1.67 times the bytes from the disk, 1.9 GB/s against 3.2.
"""

import ctypes
import mmap
import os
import sys

import numpy as np


class PageCache:
    """What is held of one open file. The map is never read from, so nothing can go wrong in it."""

    def __init__(self, file: int) -> None:
        self._map: mmap.mmap | None = None
        self._address = 0
        size = os.fstat(file).st_size
        if sys.platform.startswith("linux") and size:
            self._map = mmap.mmap(file, size, prot=mmap.PROT_READ)
            self._address = np.frombuffer(self._map, np.uint8).ctypes.data
            # Under the interpreter's lock: the call takes a microsecond, giving the lock away more.
            self._mincore = ctypes.PyDLL(None).mincore
            self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

    def holds(self, offset: int, size: int) -> bool:
        """Whether all of these bytes are there, as far as can be told: yes, to who may not write the file."""
        if self._map is None:
            return True
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        pages = ctypes.create_string_buffer(-(-(offset + size - begin) // mmap.PAGESIZE))
        if self._mincore(self._address + begin, offset + size - begin, pages) != 0:
            return True
        return b"\0" not in pages.raw
