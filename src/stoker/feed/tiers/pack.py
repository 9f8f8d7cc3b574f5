"""One cache on disk: its format, how rows get into it, and how a row is known to be whole.

A cache is a folder:

    cache.json   what it holds: of which source, how long a row is, how many rows are kept
    rows         row i at i * stride; the rows never written are holes
    sums         the entry of row i: 8 bytes of checksum, or 0: not there; then its small leaves
    writing      locked by whoever writes rows
    in-use       locked by everyone who has the cache open

A row is there when its checksum is, and whole when its bytes have that checksum; every process checks that
when it first reads the row. Leaves as small as a label stand with the checksum, in memory, so that rows of
whole pages lie side by side: 98 KB and a label, 100 KB apart, could only be copied in blocks of 4 KB, the
largest that divides both, at 15.9 GB/s on one core and 28.3 on two; whole rows came at 21.7 and 37.7.
The checksum is seeded by the cache's key and the row's number, so another row's bytes, another cache's and
bytes that a kill or a power cut left half written are all alike: not this row, read from the source and
written again. Nothing therefore rests on the order in which writes reach the disk, and nothing is synced
while a run trains: a power cut costs rows of the last seconds, which are fetched again.

Rows can arrive in any order, as they do in a shuffled first epoch, from several processes. Segments that
appear whole would mean fetching 256 samples for one, or writing everything twice.
"""

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import MissingExtra
from stoker.feed.layout import Layout, aligned
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.locks import claimed, locked
from stoker.feed.whole_file import whole_file

FORMAT = 2
HEADER, ROWS, SUMS, WRITING, IN_USE = "cache.json", "rows", "sums", "writing", "in-use"
# What O_DIRECT asks of offsets, lengths and addresses: the block size, at most a page on Linux.
PAGE = 4096
# Rows from this size on begin at a page, so that O_DIRECT can read one: at worst a quarter is lost.
PAGED_FROM = 4 * PAGE
# Of such rows, leaves up to this size stand in their entries, as long as those are no longer than that: every
# process has all of them in memory.
_SMALL, _ENTRY = 16, 72
# What a file system notes of a row that lies apart from the others: an extent of 12 to 16 bytes.
TABLE_BYTES = 16
# What Linux and macOS take in one call (IOV_MAX); given more, they refuse all of it (EINVAL).
_MOST_PARTS = 1024
# A writer holds the lock for one batch; one that is stopped must not stop the others.
_PATIENCE_S = 5.0

Sums = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a cache is of. Equal contents share a cache."""

    fingerprint: str
    transform: str
    samples: int
    layout: Layout

    @cached_property
    def in_entry(self) -> dict[int, slice]:
        """The leaves that stand in a row's entry, by their number, and where there."""
        found: dict[int, slice] = {}
        end = 8
        if self.layout.row_bytes >= PAGED_FROM:
            for number, leaf in enumerate(self.layout.leaves):
                if leaf.bytes <= _SMALL and end + leaf.bytes <= _ENTRY:
                    found[number] = slice(end, end + leaf.bytes)
                    end += leaf.bytes
        return found

    @cached_property
    def in_row(self) -> dict[int, slice]:
        """The others, and where in the row: each from a multiple of 16 on."""
        found: dict[int, slice] = {}
        end = 0
        for number, leaf in enumerate(self.layout.leaves):
            if number not in self.in_entry:
                found[number] = slice(end, end + leaf.bytes)
                end += aligned(leaf.bytes)
        return found

    @cached_property
    def row_bytes(self) -> int:
        """How long a row is, the gaps behind its leaves included."""
        return sum(aligned(piece.stop - piece.start) for piece in self.in_row.values())

    @cached_property
    def entry_bytes(self) -> int:
        """How long an entry is."""
        return -(-max((piece.stop for piece in self.in_entry.values()), default=8) // 8) * 8

    @property
    def stride(self) -> int:
        """From one row's beginning to the next's."""
        size = self.row_bytes
        return size if size < PAGED_FROM else -(-size // PAGE) * PAGE

    def bytes_of(self, kept: int) -> int:
        """What a cache of it takes when the rows it keeps are there."""
        return bytes_of(self.samples, kept, self.stride, self.entry_bytes)

    @property
    def key(self) -> str:
        """The name of its folder."""
        text = json.dumps(self._told(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def header(self, kept: int) -> dict[str, Any]:
        """The header of its cache, of which the first `kept` rows are kept."""
        sizes = {"stride": self.stride, "entry": self.entry_bytes}
        return self._told() | {"key": self.key, **sizes, "kept": kept, "checksum": "xxh3_64"}

    def _told(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "transform": self.transform,
            "samples": self.samples,
            "layout": self.layout.to_json(),
        }


def bytes_of(samples: int, kept: int, stride: int, entry: int) -> int:
    """What a cache takes when all the rows it keeps are there, the file system's tables of them included."""
    return kept * (stride + TABLE_BYTES) + samples * entry + 4 * PAGE


def read_header(folder: Path) -> dict[str, Any] | None:
    """The header, if there is a usable one."""
    try:
        told = json.loads((folder / HEADER).read_bytes())
    except (OSError, ValueError):
        return None
    names = ("samples", "stride", "entry", "kept")
    counts = [told.get(name) for name in names] if isinstance(told, dict) else [None]
    if not all(isinstance(count, int) and count > 0 for count in counts) or told["kept"] > told["samples"]:
        return None
    return dict(told)


def write_header(folder: Path, header: dict[str, Any]) -> None:
    """Write it, whole."""
    with whole_file(folder / HEADER) as file:
        file.write(json.dumps(header, indent=1).encode())


def sizes_of(content: Content) -> dict[str, int]:
    """How long the files of a cache are, from its making on; rows and checksums not there are holes."""
    entries = content.samples * content.entry_bytes
    return {ROWS: content.samples * content.stride, SUMS: entries, WRITING: 0, IN_USE: 0}


def create(folder: Path, content: Content, kept: int) -> None:
    """Make an empty cache in a new folder. It counts from when its folder gets its right name."""
    folder.mkdir()
    for name, size in sizes_of(content).items():
        with (folder / name).open("xb") as file:
            file.truncate(size)
    write_header(folder, content.header(kept))


class Checksum:
    """The checksum of a row's bytes by its seed, never 0.

    XXH3 at 98 KB a row: 62 GB/s on one core out of its cache (zlib's crc32 4.2, SHA-1 1.9).
    """

    def __init__(self) -> None:
        try:
            import xxhash
        except ImportError as error:
            raise MissingExtra("xxhash", "disk", "the disk tier") from error
        self._whole, self._streamed = xxhash.xxh3_64_intdigest, xxhash.xxh3_64

    def of(self, parts: Sequence[memoryview], seed: int) -> int:
        """Of a row in these parts."""
        if len(parts) == 1:
            return self._whole(parts[0], seed) or 1
        streamed = self._streamed(seed=seed)
        for part in parts:
            streamed.update(part)
        return streamed.intdigest() or 1


class Pack:
    """The open files of one cache, in one process. Reads and writes come from any thread.

    Closed when nobody refers to it any more, and never before: a descriptor closed under a writer in another
    thread could by then be some other file's.
    """

    def __init__(self, folder: Path, content: Content, *, kept: int, in_use: int, writable: bool) -> None:
        self.folder, self.content, self.kept, self.writable = folder, content, kept, writable
        self.stride, self.row_bytes = content.stride, content.row_bytes
        sizes = {number: piece.stop - piece.start for number, piece in content.in_row.items()}
        self._gaps = {number: aligned(size) - size for number, size in sizes.items()}
        self._checksum = Checksum()
        self._key = int(content.key[:16], 16)
        self._patience_s = _PATIENCE_S
        files = [in_use]
        weakref.finalize(self, _close, files)
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        self.rows_file = os.open(folder / ROWS, flags)
        files.append(self.rows_file)
        self._sums_file = os.open(folder / SUMS, flags)
        files.append(self._sums_file)
        self.direct_file = self._open_direct(files)
        # What is known of all entries: of a row, in one, its checksum and the rest.
        self._entries: Bytes = np.zeros((kept, content.entry_bytes), np.uint8)
        self.sums: Sums = self._entries[:, :8].view(np.uint64)[:, 0]
        # Rows that this process has found whole, by the entries that it knows now.
        self.whole: NDArray[np.bool_] = np.zeros(kept, np.bool_)
        self.refresh_all()

    def _open_direct(self, files: list[int]) -> int | None:
        """Past the page cache, where rows and the file system allow it (no macOS; some network mounts)."""
        if self.stride % PAGE or not hasattr(os, "O_DIRECT"):
            return None
        try:
            files.append(os.open(self.folder / ROWS, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
        except OSError:
            return None
        return files[-1]

    def parts(self, leaves: Sequence[Bytes], at: int) -> list[memoryview]:
        """Row `at` of these leaves, each of them rows of bytes, as the file has it: zeros in the gaps."""
        parts = []
        for number, gap in self._gaps.items():
            if leaves[number].shape[1]:
                parts.append(leaves[number][at].data)
            if gap:
                parts.append(memoryview(bytearray(gap)))
        return parts

    def take_small(self, numbers: Indices, outs: Sequence[Bytes], places: Indices) -> None:
        """Put the leaves that stand in the entries of these rows into their places."""
        for leaf, piece in self.content.in_entry.items():
            outs[leaf][places] = self._entries[numbers, piece]

    def checksum(self, number: int, leaves: Sequence[Bytes], at: int) -> int:
        """What the row of this number must have in its entry, if it is row `at` of these leaves."""
        small = [leaves[leaf][at].data for leaf in self.content.in_entry if leaves[leaf].shape[1]]
        # Another seed for each row of each cache; the factor is 2**64 over the golden ratio.
        seed = (self._key + number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        return self._checksum.of([*self.parts(leaves, at), *small], seed)

    def entries(self, numbers: Indices) -> Sums:
        """The checksums of these rows, 0 where there is none. What is not known is looked up in the file."""
        inside = numbers < self.kept
        known = np.zeros(len(numbers), np.uint64)
        known[inside] = self.sums[numbers[inside]]
        for at in np.flatnonzero(inside & (known == 0)).tolist():
            known[at] = self._look_up(int(numbers[at]))
        return known

    def refresh_all(self) -> bool:
        """Look all of them up again; whether every row is there. A file cut short has none at its end."""
        size = self.content.entry_bytes
        told = np.frombuffer(_pread(self._sums_file, self.kept * size, 0), np.uint8)
        entries = told[: len(told) // size * size].reshape(-1, size)
        sums = entries[:, :8].copy().view(np.uint64)[:, 0]
        # What is known already stays: its small leaves were checked, and those in the file are not.
        new = np.flatnonzero((sums != 0) & (sums != self.sums[: len(sums)]))
        self.whole[new] = False
        self._entries[new] = entries[new]
        self.sums[: len(sums)][sums == 0] = 0
        return bool(self.sums.all())

    def _look_up(self, number: int) -> int:
        size = self.content.entry_bytes
        try:
            told = os.pread(self._sums_file, size, number * size)
        except OSError:  # the disk cannot tell: then it is not there, and comes from the source
            told = b""
        self._know(number, np.frombuffer(told if len(told) == size else bytes(size), np.uint8))
        return int(self.sums[number])

    def _know(self, number: int, entry: Bytes) -> None:
        """Of a row that is there no more, its small leaves stay: another thread may be amid reading it."""
        if entry[:8].any():
            self.whole[number] = False
            self._entries[number] = entry
        else:
            self.sums[number] = 0

    def write(self, numbers: Indices, leaves: Sequence[Bytes], seen: Sums) -> int:
        """Write rows whose checksums are still those `seen`; how many. Raises OSError as the disk does.

        Row `numbers[k]` is row k of all leaves, and goes to the file from where it lies.

        0 was seen for a row that is not there, another value for one found damaged. Whoever finds something
        else leaves the row alone: it has been written since.
        """
        with locked(self.folder / WRITING, patience_s=self._patience_s) as mine:
            # Who has waited in vain does not wait again before the lock has been free once.
            self._patience_s = _PATIENCE_S if mine else 0.0
            if not mine:
                return 0
            if os.fstat(self.rows_file).st_size != self.content.samples * self.stride:
                # Written to, it would grow again with holes where others have found whole rows.
                raise OSError(errno.EIO, f"{self.folder / ROWS} was cut short")
            ours = [
                at
                for at, number in enumerate(numbers.tolist())
                if number < self.kept and self._look_up(number) == seen[at]
            ]
            for at in ours:
                number, parts = int(numbers[at]), self.parts(leaves, at)
                entry = np.zeros(self.content.entry_bytes, np.uint8)
                if seen[at]:  # damaged: from here on it is not there
                    self._enter(number, entry)
                write_parts(self.rows_file, parts, number * self.stride)
                entry[:8].view(np.uint64)[0] = self.checksum(number, leaves, at)  # the CPU's cache has it
                for leaf, piece in self.content.in_entry.items():
                    entry[piece] = leaves[leaf][at]
                self._enter(number, entry)
        return len(ours)

    def _enter(self, number: int, entry: Bytes) -> None:
        write_parts(self._sums_file, [entry.data], number * len(entry))
        self._know(number, entry)

    def claim(self, block: int) -> AbstractContextManager[bool]:
        """Whether no other process fills this block, kept so for the `with` that it is used in."""
        return claimed(self._sums_file, block)

    def sync(self) -> None:
        """Have everything written so far on the disk."""
        for file in (self.rows_file, self._sums_file):
            os.fsync(file)


def _pread(file: int, size: int, offset: int) -> bytes:
    parts = []
    while size and (part := os.pread(file, size, offset)):
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def write_parts(file: int, parts: Sequence[memoryview], offset: int) -> None:
    """Write these bytes, none of them empty, one after the other: all of them, or OSError."""
    left = list(parts)
    while left:
        done = os.pwritev(file, left[:_MOST_PARTS], offset)
        if not done:
            raise OSError(errno.ENOSPC, "nothing could be written")
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:  # the system took no more than that of the next
            left[0] = left[0][done:]


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
