"""Samples in the host's memory, once a node: all processes on it share one file in /dev/shm.

    0            the header: what the samples are of; written last, so a file that has it was made whole
    flags        one byte a sample, set after the sample's bytes
    leaves       each begins at a page

Whoever has the file open holds a shared lock on it, and whoever closes it last removes it. When the last one
is killed it stays, and the next start of the same goes on with what is flagged; anything else left behind is
removed once the room is needed, or at once if another version wrote it. With `reusable=False`, where the next
start may not take it for the same, it is never gone on with, and removed by whoever opens any rows next.

All of it is allocated before it is used: a file that outgrew its memory would end the training by SIGBUS.
Only its owner may read it. `pin_memory()` would round the size up to a power of two.
"""

import errno
import hashlib
import json
import mmap
import os
import stat
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import NoRoom, UsageError
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.pack import PAGE, Bytes, Content, write_parts
from stoker.feed.tiers.rows import Rows, as_leaf

if sys.platform != "win32":
    import fcntl

FOLDER = Path("/dev/shm")
MAGIC = b"stoker rows, format 1\n"
# Of rows that are no use without a process that has them open.
MAGIC_ONCE = b"stoker rows, format 1, once\n"
# Another process may be allocating: at the 4.3 GB/s seen here, 200 GB take 47 s.
PATIENCE_S = 600.0
_NAP_S = 0.02
# A signal undoes an allocation that it interrupts: of so much at a time, at most (15 ms here).
_PIECE_BYTES = 64 << 20
# Rows from this size on are worth a call each.
_WRITTEN_FROM = 4 * PAGE


class SharedRows(Rows):
    """The rows of this content, shared with every process of this user on the node that opens them.

    NoRoom where they do not fit into `folder`; with `alone`, where no other process needs them, memory of
    this process's own is taken then. A forked child may read; only who opened it removes it.
    """

    def __init__(
        self,
        content: Content,
        *,
        folder: Path = FOLDER,
        alone: bool = False,
        reusable: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        places = Places.of(content, reusable=reusable)
        self._writer: _Writer | None = None
        self.path: Path | None = folder / places.name
        self.why = f"ram: {content.samples} samples, {places.bytes / 1e9:.2f} GB, in {self.path}"
        try:
            file = _open(self.path, places, patience_s)
        except NoRoom as error:
            if not alone:
                raise
            self.path = None
            self.why = f"ram: {content.samples} samples, {places.bytes / 1e9:.2f} GB, not shared: {error}"
            mapping = _mapped(-1, places.bytes)
        else:
            self._leave = weakref.finalize(self, _leave, os.getpid(), file, self.path)
            self._writer = _Writer(file, places)
            mapping = _mapped(file, places.bytes)
        # Unmapped when nothing refers to it any more: a thread may be copying while another one closes.
        self.memory: Bytes = np.frombuffer(mapping, np.uint8)
        count, whole = content.samples, torch.from_numpy(self.memory)
        leaves = [
            as_leaf(whole[begin : begin + count * leaf.bytes].view(count, leaf.bytes), leaf)
            for leaf, begin in zip(content.layout.leaves, places.leaves, strict=True)
        ]
        flags = self.memory[places.flags : places.flags + count]
        super().__init__(content.layout, leaves, flags)

    def _store(self, leaf: int, rows: torch.Tensor, numbers: Indices, given: torch.Tensor) -> None:
        writer = self._writer
        if writer is None or self.layout.leaves[leaf].bytes < _WRITTEN_FROM:
            super()._store(leaf, rows, numbers, given)
        else:
            writer.write(leaf, numbers, given)

    def close(self) -> None:
        """Let go of the memory; if nobody else has it open, it is gone."""
        super().close()
        self.memory, self._writer = np.empty(0, np.uint8), None
        if self.path is not None:
            self._leave()

    def __reduce__(self) -> Any:
        raise UsageError(
            "samples in shared memory cannot be pickled for another process: open them there, by content"
        )


@dataclass(frozen=True, kw_only=True)
class Places:
    """The file's name, whether one may be used that nobody has open, and where its parts begin."""

    name: str
    reusable: bool
    header: bytes
    flags: int
    leaves: tuple[int, ...]
    bytes: int

    @classmethod
    def of(cls, content: Content, *, reusable: bool = True) -> "Places":
        """For the samples of this content; equal contents of one user share a file."""
        told = json.dumps(content.header(content.samples) | {"uid": _uid()}, sort_keys=True).encode() + b"\n"
        name = f"{_prefix()}{hashlib.sha256(MAGIC + told).hexdigest()[:32]}"
        header = (MAGIC if reusable else MAGIC_ONCE) + told
        flags = _paged(len(header))
        end = flags + _paged(content.samples)
        leaves = []
        for leaf in content.layout.leaves:
            leaves.append(end)
            end += _paged(content.samples * leaf.bytes)
        return cls(name=name, reusable=reusable, header=header, flags=flags, leaves=tuple(leaves), bytes=end)


class _Writer:
    """Writes rows into the file, by a descriptor that is closed when nobody writes any more.

    Through the mapping, rows of 98 KB came in at 1.5 GB/s, a fault for each page when it is first written; by
    the file at 5.3. It is the same memory.
    """

    def __init__(self, file: int, places: Places) -> None:
        self._file, self._begins = os.dup(file), places.leaves
        weakref.finalize(self, os.close, self._file)

    def write(self, leaf: int, numbers: Indices, given: torch.Tensor) -> None:
        """These rows of a leaf."""
        for number, row in zip(numbers.tolist(), given.numpy().view(np.uint8), strict=True):
            data, offset = row.data, self._begins[leaf] + number * row.nbytes
            while len(data):
                done = os.pwrite(self._file, data, offset)
                data, offset = data[done:], offset + done


def path_of(content: Content, folder: Path = FOLDER) -> Path:
    """Where these samples are shared."""
    return folder / Places.of(content).name


def allocated(content: Content, folder: Path = FOLDER) -> int:
    """The bytes of memory that these samples have there already."""
    try:
        return path_of(content, folder).stat().st_blocks * 512
    except OSError:
        return 0


def sweep(folder: Path = FOLDER, *, keep: Path | None = None, every: bool = True) -> int:
    """Remove this user's files that nobody has open, all or those of no use to anybody; the bytes freed."""
    freed = 0
    for path in folder.glob(f"{_prefix()}*"):
        if path == keep:
            continue
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or not one of ours
            continue
        try:
            of_use = os.pread(file, len(MAGIC), 0) == MAGIC  # else another version's, or of one run
            if (every or not of_use) and _locked(file, alone=True):
                freed += os.fstat(file).st_blocks * 512
                _unlink(path, file)
        finally:
            os.close(file)
    return freed


def _open(path: Path, places: Places, patience_s: float) -> int:
    """A descriptor of the file, whole and locked as shared; NoRoom if that cannot be."""
    if sys.platform == "win32" or not hasattr(os, "posix_fallocate"):
        raise NoRoom(f"memory cannot be shared by a file on {sys.platform}")
    until = time.monotonic() + patience_s
    try:
        sweep(path.parent, keep=path, every=False)
        while True:
            file = _descriptor(path)
            try:
                if _entered(file, path, places):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            if time.monotonic() >= until:
                raise NoRoom(
                    f"another process makes {path}, for {patience_s:.0f} s by now: end it, or remove the file"
                )
            time.sleep(_NAP_S)
    except OSError as error:
        raise NoRoom(f"no memory to share of {places.bytes} bytes at {path}: {error}") from error


def _descriptor(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    found = os.fstat(file)
    if found.st_uid != _uid() or not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise PermissionError(errno.EPERM, f"it is not a file of user {_uid()}, but of {found.st_uid}")
    os.fchmod(file, 0o600)
    return file


def _entered(file: int, path: Path, places: Places) -> bool:
    """Make the file whole if it is not, and share it; False if others are at it, or have just removed it."""
    if (
        _locked(file, alone=True)
        and os.fstat(file).st_nlink
        and not (places.reusable and _is_whole(file, places))
    ):
        try:
            _make(file, path, places)
        except BaseException:
            _unlink(path, file)
            raise
    # Between the two locks there may have been none: another process may have removed the file.
    return _locked(file, alone=False) and os.fstat(file).st_nlink > 0 and _is_whole(file, places)


def _is_whole(file: int, places: Places) -> bool:
    return os.fstat(file).st_size == places.bytes and os.pread(file, len(places.header), 0) == places.header


def _make(file: int, path: Path, places: Places) -> None:
    os.ftruncate(file, 0)
    # Asked first, so that what others have in the folder does not meet a full one on the way.
    if _free(path.parent) < places.bytes:
        sweep(path.parent, keep=path)
    free = _free(path.parent)
    if free < places.bytes:
        raise OSError(errno.ENOSPC, f"{path.parent} has {free} bytes free")
    for begin in range(0, places.bytes, _PIECE_BYTES):
        os.posix_fallocate(file, begin, min(_PIECE_BYTES, places.bytes - begin))
    write_parts(file, [memoryview(places.header)], 0)


def _leave(pid: int, file: int, path: Path) -> None:
    """Close it, and remove it if nobody else has it open. A forked child shares the lock: it leaves it be."""
    if os.getpid() == pid:
        if _locked(file, alone=True):
            _unlink(path, file)
        fcntl.flock(file, fcntl.LOCK_UN)  # children forked meanwhile, and the mapping, share the open file
    os.close(file)


def _locked(file: int, *, alone: bool) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlink(path: Path, file: int) -> None:
    """Remove the file if it is still the one of that name."""
    try:
        if os.path.samestat(path.lstat(), os.fstat(file)):
            path.unlink()
    except FileNotFoundError:
        pass  # somebody cleared the folder


def _mapped(file: int, size: int) -> mmap.mmap:
    """The file, or (-1) memory without one; shared, as forked children would else get copies."""
    try:
        return mmap.mmap(file, size)
    except OSError as error:
        raise NoRoom(f"{size} bytes cannot be mapped: {error}") from error


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _paged(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _uid() -> int:
    return os.geteuid() if sys.platform != "win32" else 0


def _prefix() -> str:
    return f"stoker-ram-{_uid()}-"
