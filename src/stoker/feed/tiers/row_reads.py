"""Many rows of a pack at once: what the page cache has by memory map, the rest by many reads in flight.

Three ways, chosen for each row of a batch:

    in the page cache      copied through a map, by as many threads as copying takes (page_cache)
    on the disk only       read past the page cache by the kernel's queue (direct_queue): a set larger than
                           memory would only push out what is there. A set that fits is to be there in the
                           end, so it is read so only as long as hardly any of it is
    neither can be had     read through the page cache by threads: small or odd rows, other systems, and
                           whatever the queue could not read

All of them put a row's bytes where the batch has them, and check them there when the process has not yet
found that row whole. Checked every time, rows came at 10.8 GB/s instead of 12.3 from the page cache.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from stoker.facts import host
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.pack import PAGE, Bytes, Pack, Sums
from stoker.feed.tiers.page_cache import PageCache

# Fewer bytes than this are not worth waking other threads for; not tuned.
_ALONE_BYTES = 1 << 20
# As many as there are cores, up to this. On 2 cores 2 copy 13.7 GB/s, 1 copies 11.5; not tried on more. They
# are shared among the most batches that were read at a time so far: with 2 for each of 2 batches a feed came
# to 10.4 GB/s, with 1 for each to 11.4 (medians of 10 turns).
_COPIERS = min(4, os.cpu_count() or 1)
# Threads that ask the kernel's queue, shared as those are, and the least that one asks for. On 16 cores one
# came to 2.6 GB/s of rows of 98 KB, where 32 threads with a read each made 3.5 (H200's host; more that ask
# were not measured there). On 2 cores one, two and four are alike.
_ASKERS, _LEAST_ASKED = min(4, os.cpu_count() or 1), 16
# Threads that wait for the disk. At 98 KB a row bare reads are fastest with 16 of 1 to 32.
_READERS = 16
# Copied between one look at whether they are whole and the next: so that they are still in the CPU's cache.
_CHECKED_BYTES = 512 << 10
# Where fewer of a batch are missing in the page cache, they are read through it, and are there again. Read
# past it, they would stay missing: a system that takes idle pages back would have all of a set read from the
# disk in the end (seen: 15% of a file gone in a minute, and after some minutes a third of the rate).
_FEW_COLD = 0.25
# Where this much of a batch is there, and the set fits into memory, what is missing is read through the page
# cache, in the next so many batches too; and where hardly anything is found there, one batch in so many. So a
# set that lay on the disk only is in memory in the third epoch. Not in the second, as through the cache 16
# threads read 2.6 GB/s of rows of 98 KB, past it the queue 4.5.
_WARMED = 0.01
_ADMITTED = 64
# What of the free memory a set may take to count as one that fits, and how long that is believed.
_FITTING_SHARE = 0.5
_FITS_S = 5.0
# A row in more pieces than this is read in one and then copied apart, not scattered by the kernel.
_MOST_PIECES = 16
T = TypeVar("T")


class RowReads:
    """Reads rows of one pack, from any thread."""

    def __init__(self, pack: Pack, *, direct: bool) -> None:
        self._pack = pack
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="stoker-disk")
        # Batches that are being read now.
        self._under_way = self._at_a_time = 0
        self._counting = threading.Lock()
        # Batches in a row of which hardly anything was in the page cache. As if there had been some before,
        # the first of them being one that is read through it.
        self._barren = 2 * _ADMITTED - 1
        # Whether all rows fit into memory, believed until then.
        self._fitting = (0.0, False)
        self._page_cache = _open_page_cache(pack)
        # Where nobody says what the page cache holds, all is read through it: it may well hold everything.
        self._queue = _open_queue(pack) if direct and self._page_cache is not None else None
        if self._queue is not None:
            # Rows around one that is read come in their own turn, past the page cache as a rule.
            os.posix_fadvise(pack.rows_file, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, numbers: Indices, places: Indices, sums: Sums, outs: Sequence[Bytes]) -> list[int]:
        """Read row `numbers[k]` into place `places[k]` of each out; the places of rows that are not whole.

        There is an out for each piece of a row, and in it one row of bytes for each place.
        What stands in a place that is returned is not to be used.
        """
        with self._counting:
            self._under_way += 1
            self._at_a_time = max(self._at_a_time, self._under_way)
        try:
            return self._read(numbers, places, sums, outs)
        finally:
            with self._counting:
                self._under_way -= 1

    def _read(self, numbers: Indices, places: Indices, sums: Sums, outs: Sequence[Bytes]) -> list[int]:
        self._pack.take_small(numbers, outs, places)
        known = self._pack.whole[numbers]
        batch = _Batch(self._pack, numbers, places, np.where(known, np.uint64(0), sums), outs)
        held = np.zeros(len(numbers), np.bool_)
        if self._page_cache is not None:
            held = self._page_cache.held(numbers)
        warm, cold = np.flatnonzero(held), np.flatnonzero(~held)
        if self._page_cache is not None and self._page_cache.can_take([piece for _, piece in batch.pieces]):
            self._copy(self._page_cache, batch, warm)
        else:
            self._read_plainly(batch, warm, _COPIERS)
        queue = self._queue
        if queue is not None and self._goes_past(len(cold) / max(1, len(numbers))):
            cold = self._read_by_queue(queue, batch, cold)
        if len(cold):
            self._read_plainly(batch, cold, _READERS)
        if batch.wrong or not known.all():
            good = ~np.isin(places, batch.wrong)
            self._pack.whole[numbers[good]] = True
            self._pack.whole[numbers[~good]] = False
        return batch.wrong

    def _goes_past(self, missing: float) -> bool:
        """Whether a batch of which this share is not in the page cache is read past it."""
        with self._counting:
            barren = self._barren = 0 if missing <= 1 - _WARMED else self._barren + 1
        if missing <= _FEW_COLD or not self._fits():
            return missing > _FEW_COLD
        return barren > _ADMITTED and barren % _ADMITTED != 0

    def _fits(self) -> bool:
        """Whether the page cache can have all of the rows beside whatever else is at work."""
        until, fits = self._fitting
        now = time.monotonic()
        if now >= until:
            free = host.read().memory_free_bytes
            fits = free is not None and self._pack.kept * self._pack.stride <= free * _FITTING_SHARE
            self._fitting = now + _FITS_S, fits
        return fits

    def _copy(self, page_cache: PageCache, batch: "_Batch", rows: Indices) -> None:
        """Through the map, each thread a part."""
        step = max(1, _CHECKED_BYTES // self._pack.stride)

        def copy(part: Indices) -> None:
            due = batch.due[part].any()
            at_once = step if due else len(part) or 1
            for begin in range(0, len(part), at_once):
                some = part[begin : begin + at_once]
                for out, piece in batch.pieces:
                    page_cache.take(batch.numbers[some], piece, out, batch.places[some])
                if due:
                    batch.check(some)

        alone = len(rows) * self._pack.row_bytes < _ALONE_BYTES
        self._share(copy, np.array_split(rows, 1 if alone else max(1, _COPIERS // self._at_a_time)))

    def _read_by_queue(self, queue: DirectQueue, batch: "_Batch", rows: Indices) -> Indices:
        """Past the page cache, each thread asking for a part; the rows that could not be read so."""
        left: list[Indices] = []

        def ask(part: Indices) -> None:
            left.append(self._ask(queue, batch, part))

        most = max(1, _ASKERS // self._at_a_time)
        self._share(ask, np.array_split(rows, max(1, min(most, len(rows) // _LEAST_ASKED))))
        if len(rows) and sum(map(len, left)) == len(rows):  # no queue to be had, or blocks larger than a page
            self._queue = None
        return np.concatenate(left)

    def _ask(self, queue: DirectQueue, batch: "_Batch", rows: Indices) -> Indices:
        """By this thread; the rows that could not be read so."""
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
        except OSError:  # the system has no more queues to give; none of the reads is in flight any more
            pass
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
            wait(others)  # all of them write into the batch
        for other in others:
            other.result()


class _Batch:
    """Rows to be read, each by its number into its place; `due` is the checksum of those not yet checked."""

    def __init__(
        self, pack: Pack, numbers: Indices, places: Indices, due: Sums, outs: Sequence[Bytes]
    ) -> None:
        self._pack = pack
        self.numbers, self.places, self.due = numbers, places, due
        # All leaves, and what of them is in the rows.
        self.outs = outs
        self.pieces = [(outs[leaf], piece) for leaf, piece in pack.content.in_row.items()]
        self.wrong: list[int] = []

    def check(self, rows: Iterable[int]) -> None:
        """Note those that came and are not whole."""
        for at in rows:
            if not self.due[at]:
                continue
            number, place = int(self.numbers[at]), int(self.places[at])
            if self._pack.checksum(number, self.outs, place) != self.due[at]:
                self.wrong.append(place)

    def fetch(self, at: int) -> bool:
        """Read a row from the file into its place; whether all of it came."""
        pack, offset = self._pack, int(self.numbers[at]) * self._pack.stride
        if len(self.pieces) <= _MOST_PIECES:
            parts = pack.parts(self.outs, int(self.places[at]))
            return os.preadv(pack.rows_file, parts, offset) == pack.row_bytes
        row = np.frombuffer(os.pread(pack.rows_file, pack.row_bytes, offset), np.uint8)
        if len(row) < pack.row_bytes:
            return False
        for out, piece in self.pieces:
            out[self.places[at]] = row[piece]
        return True


class _Scatter:
    """Where the queue puts rows: pieces of whole pages into the batch, the rest into spare memory first."""

    def __init__(self, batch: _Batch, rows: Indices, stride: int) -> None:
        self._places = batch.places[rows]
        pieces = batch.pieces
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
