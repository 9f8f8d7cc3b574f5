"""Disks that can be made small, full and read-only, in mounts that nobody else sees.

The campaign leaves the machine's mounts for its own (`take_own_mounts`): what it mounts is gone when it ends,
however it ends, and its shared memory is not anybody else's.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.errors import BenchFailed
from stoker.scratch import kernel

MIB = 1 << 20
_BLOCK = 4096
_TRIES = 100


@functools.cache
def take_own_mounts() -> str | None:
    """Have mounts and a /dev/shm of one's own from here on; why not, where that cannot be."""
    try:
        kernel.unshare(kernel.NEWNS)
        kernel.mount("", "/", flags=kernel.REC | kernel.PRIVATE)
        kernel.mount("tmpfs", "/dev/shm", "tmpfs")
    except (OSError, AttributeError) as error:  # not root, or not Linux
        return f"mounts cannot be made: {error}"
    return None


class Disk:
    """A file system in memory, of a size that can be changed under whoever uses it."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._size = size
        folder.mkdir(parents=True, exist_ok=True)
        kernel.mount("tmpfs", str(folder), "tmpfs", 0, f"size={size},mode=755")

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def fill(self, *, spare: int = 0) -> None:
        """No room from now on, but for so much."""
        for _ in range(_TRIES):
            try:
                self._resize(self.used + spare)
            except OSError:  # more was written since it was asked how much is there
                continue
            return
        raise BenchFailed(f"{self.folder} grew faster than it could be made full: run it again")

    def empty_again(self) -> None:
        """All the room that it had."""
        self._resize(self._size)

    def lock(self) -> None:
        """Read-only, with all that is on it; nobody may have a file of it open to write."""
        kernel.mount("tmpfs", str(self.folder), "tmpfs", kernel.REMOUNT | kernel.RDONLY)

    def unlock(self) -> None:
        """To be written to again."""
        kernel.mount("tmpfs", str(self.folder), "tmpfs", kernel.REMOUNT)

    def close(self) -> None:
        """Take it away."""
        kernel.unmount(str(self.folder))

    def _resize(self, size: int) -> None:
        rounded = max(_BLOCK, -(-size // _BLOCK) * _BLOCK)
        kernel.mount("tmpfs", str(self.folder), "tmpfs", kernel.REMOUNT, f"size={rounded}")


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[Disk]:
    """A disk on this folder until the block ends."""
    made = Disk(folder, size)
    try:
        yield made
    finally:
        made.close()
