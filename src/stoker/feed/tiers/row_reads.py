"""Many rows of a pack at once: what the page cache has by memory map, the rest by many reads in flight.

Three ways, chosen for each row of a batch:

    in the page cache      copied through a map, by as many threads as copying takes (page_cache)
    on the disk only       read past the page cache by the kernel's queue (direct_queue): a set larger than
                           memory would only push out what is there; unless they are few
    neither can be had     read through the page cache by threads: small or odd rows, other systems, and
                           whatever the queue could not read

All of them put a row's bytes where the batch has them, and check them there when the process has not yet
found that row whole. Checked every time, rows came at 10.8 GB/s instead of 12.3 from the page cache.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from stoker.feed.sources.base import Indices
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.pack import PAGE, Bytes, Pack, Sums
from stoker.feed.tiers.page_cache import PageCache

# Fewer bytes than this are not worth waking other threads for; not tuned.
_ALONE_BYTES = 1 << 20
# As many as there are cores, up to this. On 2 cores 2 copy 13.7 GB/s, 1 copies 11.5; not tried on more.
_COPIERS = min(4, os.cpu_count() or 1)
# Threads that wait for the disk. At 98 KB a row bare reads are fastest with 16 of 1 to 32.
_READERS = 16
# Copied between one look at whether they are whole and the next: so that they are still in the CPU's cache.
_CHECKED_BYTES = 512 << 10
# Where fewer of a batch are missing in the page cache, they are read through it, and are there again. Read
# past it, they would stay missing: a system that takes idle pages back would have all of a set read from the
# disk in the end (seen: 15% of a file gone in a minute, and after some minutes a third of the rate).
_FEW_COLD = 0.25
# A row in more pieces than this is read in one and then copied apart, not scattered by the kernel.
_MOST_PIECES = 16
T = TypeVar("T")


class RowReads:
    """Reads rows of one pack, from any thread."""

    def __init__(self, pack: Pack, *, direct: bool) -> None:
        self._pack = pack
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="stoker-disk")
        self._whole = np.zeros(pack.kept, np.bool_)
        self._page_cache = _open_page_cache(pack)
        # Where nobody says what the page cache holds, all is read through it: it may well hold everything.
        self._queue = _open_queue(pack) if direct and self._page_cache is not None else None

    def read(self, numbers: Indices, places: Indices, sums: Sums, outs: Sequence[Bytes]) -> list[int]:
        """Read row `numbers[k]` into place `places[k]` of each out; the places of rows that are not whole.

        There is an out for each piece of a row, and in it one row of bytes for each place.
        What stands in a place that is returned is not to be used.
        """
        due = np.where(self._whole[numbers], np.uint64(0), sums)
        batch = _Batch(self._pack, numbers, places, due, outs)
        held = np.zeros(len(numbers), np.bool_)
        if self._page_cache is not None:
            held = self._page_cache.held(numbers)
        warm, cold = np.flatnonzero(held), np.flatnonzero(~held)
        if self._page_cache is not None and self._page_cache.can_take(batch.pieces):
            self._copy(self._page_cache, batch, warm)
        else:
            self._read_plainly(batch, warm, _COPIERS)
        if self._queue is not None and len(cold) > len(numbers) * _FEW_COLD:
            cold = self._read_by_queue(self._queue, batch, cold)
        self._read_plainly(batch, cold, _READERS)
        good = ~np.isin(places, batch.wrong)
        self._whole[numbers[good]] = True
        self._whole[numbers[~good]] = False
        return batch.wrong

    def _copy(self, page_cache: PageCache, batch: "_Batch", rows: Indices) -> None:
        """Through the map, each thread a part."""
        step = max(1, _CHECKED_BYTES // self._pack.stride)

        def copy(part: Indices) -> None:
            known = step if batch.due[part].any() else len(part) or 1
            for begin in range(0, len(part), known):
                some = part[begin : begin + known]
                for out, piece in zip(batch.outs, batch.pieces, strict=True):
                    page_cache.take(batch.numbers[some], piece, out, batch.places[some])
                batch.check(some)

        alone = len(rows) * self._pack.row_bytes < _ALONE_BYTES
        self._share(copy, np.array_split(rows, 1 if alone else _COPIERS))

    def _read_by_queue(self, queue: DirectQueue, batch: "_Batch", rows: Indices) -> Indices:
        """Past the page cache; the rows that could not be read so."""
        if not len(rows):
            return rows
        left = np.ones(len(rows), np.bool_)
        scatter = _Scatter(batch, rows, self._pack.stride)
        offsets = batch.numbers[rows] * self._pack.stride
        memory = [*batch.outs, scatter.spare]
        try:
            for done, good in queue.read(offsets, scatter.vectors, self._pack.stride, memory):
                came = done[good]
                left[came] = False
                scatter.gather(came)
                batch.check(rows[came])
            useless = bool(left.all())  # blocks larger than a page, say
        except OSError:  # the system has no more queues to give; none of the reads is in flight any more
            useless = True
        if useless:
            self._queue = None
        return rows[left]

    def _read_plainly(self, batch: "_Batch", rows: Indices, threads: int) -> None:
        """Through the page cache, each thread taking the next when it is done with one."""
        shared = iter(rows.tolist())  # a list's iterator hands each item out once, to whichever thread asks

        def work(jobs: Iterator[int]) -> None:
            for at in jobs:
                try:
                    good = batch.fetch(at)
                except OSError:  # the disk cannot read it: to the caller as good as damaged
                    good = False
                if not good:
                    batch.wrong.append(int(batch.places[at]))
                elif batch.due[at]:
                    batch.check([at])

        self._share(work, [shared] * min(threads, len(rows)))

    def _share(self, work: Callable[[T], None], parts: Sequence[T]) -> None:
        """Have it done by this thread and others."""
        others = [self._pool.submit(work, part) for part in parts[1:]]
        try:
            for part in parts[:1]:
                work(part)
        finally:
            for other in others:
                other.result()


class _Batch:
    """Rows to be read, each by its number into its place; `due` is the checksum of those not yet checked."""

    def __init__(
        self, pack: Pack, numbers: Indices, places: Indices, due: Sums, outs: Sequence[Bytes]
    ) -> None:
        self._pack = pack
        self.numbers, self.places, self.due = numbers, places, due
        self.outs, self.pieces = outs, pack.pieces
        self.wrong: list[int] = []

    def check(self, rows: Iterable[int]) -> None:
        """Note those that came and are not whole."""
        for at in rows:
            if not self.due[at]:
                continue
            number, place = int(self.numbers[at]), int(self.places[at])
            if self._pack.checksum(number, self._pack.parts(self.outs, place)) != self.due[at]:
                self.wrong.append(place)

    def fetch(self, at: int) -> bool:
        """Read a row from the file into its place; whether all of it came."""
        pack, offset = self._pack, int(self.numbers[at]) * self._pack.stride
        if len(self.outs) <= _MOST_PIECES:
            parts = pack.parts(self.outs, int(self.places[at]))
            return os.preadv(pack.rows_file, parts, offset) == pack.row_bytes
        row = np.frombuffer(os.pread(pack.rows_file, pack.row_bytes, offset), np.uint8)
        if len(row) < pack.row_bytes:
            return False
        for out, piece in zip(self.outs, self.pieces, strict=True):
            out[self.places[at]] = row[piece]
        return True


class _Scatter:
    """Where the queue puts rows: pieces of whole pages into the batch, the rest into spare memory first."""

    def __init__(self, batch: _Batch, rows: Indices, stride: int) -> None:
        self._places = batch.places[rows]
        pieces = list(zip(batch.outs, batch.pieces, strict=True))
        straight = [(out, piece) for out, piece in pieces if _is_paged(out, piece)]
        self.spare = fresh_rows(len(rows), stride - sum(piece.stop - piece.start for _, piece in straight))
        every = np.arange(len(rows))
        vectors: list[tuple[Indices, int]] = []
        self._rest: list[tuple[Bytes, slice]] = []
        end = aside = 0  # of the row, and what of it went straight
        for out, piece in [*pieces, (None, slice(stride, stride))]:
            if out is not None and not _is_paged(out, piece):
                self._rest.append((out, slice(piece.start - aside, piece.stop - aside)))
                continue
            if piece.start > end:
                begins = self.spare.ctypes.data + end - aside + every * self.spare.strides[0]
                vectors.append((begins, piece.start - end))
            if out is not None:
                vectors.append((out.ctypes.data + self._places * out.strides[0], piece.stop - piece.start))
                aside += piece.stop - piece.start
            end = piece.stop
        self.vectors = np.empty((len(rows), len(vectors), 2), np.uint64)
        for at, (begins, size) in enumerate(vectors):
            self.vectors[:, at, 0], self.vectors[:, at, 1] = begins, size

    def gather(self, rows: Indices) -> None:
        """Have in the batch what came into the spare memory."""
        for at, place in zip(rows.tolist(), self._places[rows].tolist(), strict=True):
            for out, piece in self._rest:
                out[place] = self.spare[at, piece]


def _is_paged(out: Bytes, piece: slice) -> bool:
    """Whether O_DIRECT can read such a piece of a row straight into its out."""
    return piece.stop > piece.start and not (
        piece.start % PAGE or piece.stop % PAGE or out.strides[0] % PAGE or out.ctypes.data % PAGE
    )


def _open_page_cache(pack: Pack) -> PageCache | None:
    if not sys.platform.startswith("linux") or not pack.writable:
        return None
    try:
        return PageCache(pack.rows_file, stride=pack.stride)
    except OSError:  # a file system without maps, or no room for one
        return None


def _open_queue(pack: Pack) -> DirectQueue | None:
    try:
        return None if pack.direct_file is None else DirectQueue(pack.direct_file)
    except OSError:  # not on this system, or not allowed here
        return None
