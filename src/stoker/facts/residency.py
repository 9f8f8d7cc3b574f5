"""Whether a file lies in the page cache, so that a read can be called cold or warm with proof.

`POSIX_FADV_DONTNEED` is a request, and evicts nothing that is mapped: what it left is seen by mincore, and
what a read then fetched from a device by read_bytes in /proc/self/io.
"""

import ctypes
import mmap
import os
import sys
from pathlib import Path

_PROT_READ, _MAP_SHARED = 1, 1


def resident_share(descriptor: int, size: int) -> float | None:
    """Return the share of a file's first `size` bytes in the page cache; `None` where it cannot be told.

    The kernel answers "all of it" to those who may not write the file, so 1.0 proves nothing.
    """
    if not sys.platform.startswith("linux") or size <= 0:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    address = libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        flags = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags) != 0:
            return None
        return sum(flag & 1 for flag in flags) / pages
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def request_eviction(descriptor: int, size: int) -> None:
    """Ask the kernel to drop a file from the page cache; it may not."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)


def device_bytes_read() -> int | None:
    """Return the bytes that this process has made devices read so far."""
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("read_bytes:"):
            return int(line.partition(":")[2])
    return None


def judge(
    *, share_before: float | None, fetched: int | None, read: int, on_block_device: bool
) -> bool | None:
    """Say whether a read was cold: `True` and `False` only with proof.

    Nothing resident before, or nearly all fetched from a device, proves cold. Nearly nothing fetched proves
    warm, but only where reads pass through a block device: network and FUSE mounts never count as fetched.
    """
    if read <= 0:
        return None
    if share_before is not None and share_before <= 0.05:
        return True
    if fetched is not None and fetched >= 0.9 * read:
        return True
    if on_block_device and fetched is not None and fetched <= 0.1 * read:
        return False
    return None
