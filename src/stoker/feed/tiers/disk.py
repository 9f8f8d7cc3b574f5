"""The disk tier: samples of a slow source kept on a local disk, as they come.

What is there comes from the disk; what is not comes from the source, a batch at a time, and is written
before it is handed on. Several processes share a cache; each opens it for itself. Whatever goes wrong with
the disk, samples come: from the source, and `why` says why.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import UsageError
from stoker.feed.layout import Layout, Leaf
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices, Source, checked
from stoker.feed.sources.objects import local_folder
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.caches import find, free_bytes
from stoker.feed.tiers.pack import Bytes, Checksum, Content, Pack, Sums
from stoker.feed.tiers.row_reads import RowReads
from stoker.feed.tiers.rows import as_leaf

# Left to everybody else on the disk.
RESERVE_BYTES = 2 << 30
# What `fill` reads from the source at once, and what it claims for that.
_BLOCK_BYTES = 16 << 20
_BLOCK_ROWS = 1024
_NAP_S = 0.02


class DiskTier(Source):
    """A source in front of another, that keeps its samples under `root`.

    `transform_id` names what was done to the samples beyond what `source.kept_as()` tells. `cap_bytes`
    holds for all caches under `root` together. `direct=False` reads cold rows through the page cache: for a
    set that fits into memory beside the training.
    """

    def __init__(
        self,
        source: Source,
        root: str | os.PathLike[str],
        *,
        cap_bytes: int,
        reserve_bytes: int = RESERVE_BYTES,
        transform_id: str = "",
        layout: Layout | None = None,
        direct: bool = True,
    ) -> None:
        if len(source) < 1:
            raise UsageError("the source has no samples: there is nothing to keep on disk")
        Checksum()  # a missing extra is told here and not in a worker
        self.source = source
        self.layout = layout or Layout.of(source.read(np.zeros(1, np.int64)))
        self.content = Content(
            fingerprint=source.kept_as(),
            transform=transform_id,
            samples=len(source),
            layout=self.layout,
        )
        self._open = PerProcess(
            partial(
                _Open,
                local_folder(root),
                self.content,
                cap_bytes=cap_bytes,
                reserve_bytes=reserve_bytes,
                direct=direct,
            )
        )
        self._open.get()

    def __len__(self) -> int:
        return self.content.samples

    def fingerprint(self) -> str:
        """Its source's: the samples are the same."""
        return self.source.fingerprint()

    def kept_as(self) -> str:
        """As its source's are."""
        return self.content.fingerprint

    def read(self, indices: Indices) -> Any:
        """The batch of these samples, from the disk where they are there."""
        numbers = checked(indices, len(self))
        opened = self._open.get()
        if opened.pack is None:
            opened.count(misses=len(numbers))
            return self.source.read(numbers)
        seen = opened.pack.entries(numbers)
        if len(numbers) and not seen.any() and len(np.unique(numbers)) == len(numbers):
            # A first epoch: the source's batch is written from where it lies, and handed on. Packed first and
            # copied out again, an object of 100 KB took 134 us of CPU time here instead of 65.
            opened.count(misses=len(numbers))
            leaves = self._from_source(numbers)
            opened.write(numbers, leaves, seen)
        else:
            leaves = self._collect(opened, numbers, seen)
        tensors = zip(map(torch.from_numpy, leaves), self.layout.leaves, strict=True)
        return self.layout.unflatten([as_leaf(tensor, leaf) for tensor, leaf in tensors])

    def fill(self, indices: Sequence[int] | Indices | None = None) -> int:
        """Write these samples (all) that are not there yet; how many. Processes that fill share the work."""
        opened = self._open.get()
        pack = opened.pack
        if pack is None:
            return 0
        chosen = np.arange(len(self)) if indices is None else np.unique(checked(indices, len(self)))
        chosen = chosen[chosen < pack.kept]
        if not len(chosen):
            return 0
        size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // pack.stride))
        blocks = deque(np.split(chosen, np.flatnonzero(np.diff(chosen // size)) + 1))
        written = busy = 0
        while blocks and opened.may_write(size * pack.stride):
            block = blocks.popleft()
            with pack.claim(int(block[0]) // size) as mine:
                if mine:
                    written += self._fill_block(opened, pack, block)
                    busy = 0
                    continue
            blocks.append(block)  # somebody is at it; look again later, in case they die
            busy += 1
            if busy >= len(blocks):
                time.sleep(_NAP_S)
                busy = 0
        opened.sync()
        return written

    def _fill_block(self, opened: "_Open", pack: Pack, block: Indices) -> int:
        absent = block[pack.entries(block) == 0]
        if not len(absent):
            return 0
        return opened.write(absent, self._from_source(absent), np.zeros(len(absent), np.uint64))

    def _collect(self, opened: "_Open", numbers: Indices, seen: Sums) -> list[Bytes]:
        """What is on the disk from there, each other sample once from the source; the bytes of each leaf."""
        outs = [fresh_rows(len(numbers), leaf.bytes) for leaf in self.layout.leaves]
        there = np.flatnonzero(seen)
        absent = np.flatnonzero(seen == 0)
        wrong: list[int] = []
        if opened.reads is not None and len(there):
            wrong = opened.reads.read(numbers[there], there, seen[there], outs)
        places = np.concatenate([absent, np.array(sorted(wrong), np.int64)])
        opened.count(hits=len(there) - len(wrong), misses=len(absent), damaged=len(wrong))
        if not len(places):
            return outs
        wanted, first, back = np.unique(numbers[places], return_index=True, return_inverse=True)
        leaves = self._from_source(wanted)
        opened.write(wanted, leaves, seen[places][first])
        for out, leaf in zip(outs, leaves, strict=True):
            out[places] = leaf[back]
        return outs

    def _from_source(self, numbers: Indices) -> list[Bytes]:
        """The bytes of each leaf of these samples, in the source's own memory if they are dense there."""
        tensors = self.layout.flatten(self.source.read(numbers), len(numbers))
        return [_bytes_of(tensor, leaf) for tensor, leaf in zip(tensors, self.layout.leaves, strict=True)]

    @property
    def complete(self) -> bool:
        """Whether every sample is on the disk, so that the source is not needed any more."""
        pack = self._open.get().pack
        if pack is None or pack.kept < len(self):
            return False
        try:
            return bool(pack.sums.all()) or pack.refresh_all()
        except OSError:  # the disk cannot tell
            return False

    @property
    def hits(self) -> int:
        """Samples that came from the disk, to this process."""
        return self._open.get().hits

    @property
    def misses(self) -> int:
        """Samples that were not on the disk and came from the source, to this process."""
        return self._open.get().misses

    @property
    def damaged(self) -> int:
        """Samples found damaged on the disk: they came from the source, and were written again."""
        return self._open.get().damaged

    @property
    def why(self) -> str:
        """What the tier does in this process, and why not more, in a sentence."""
        return self._open.get().why

    @property
    def refused(self) -> str:
        """Why there is no cache at all in this process; empty where there is one."""
        return self._open.get().refused

    def close(self) -> None:
        """Let go of the cache, so that it can be removed; the next read opens it again."""
        self._open.drop()


class _Open:
    """What one process has open: the cache, or the reason why there is none."""

    def __init__(
        self,
        root: Path,
        content: Content,
        *,
        cap_bytes: int,
        reserve_bytes: int,
        direct: bool,
    ) -> None:
        self.hits = self.misses = self.damaged = 0
        self.pack: Pack | None = None
        self.reads: RowReads | None = None
        self._reserve = reserve_bytes
        self._lock = threading.Lock()
        self._stopped = self._paused = ""
        try:
            if sys.platform == "win32":
                raise OSError("the disk tier needs the file locks of POSIX")
            found = find(root, content, cap_bytes=cap_bytes, reserve_bytes=reserve_bytes)
            self._stopped = f"read only: {found.why}" if found.why else ""
            self.pack = Pack(
                found.folder, content, kept=found.kept, in_use=found.in_use, writable=found.writable
            )
            self.reads = RowReads(self.pack, direct=direct)
        except OSError as error:
            self.pack, self._stopped = None, str(error)

    def count(self, *, hits: int = 0, misses: int = 0, damaged: int = 0) -> None:
        """Add to the counters."""
        with self._lock:
            self.hits += hits
            self.misses += misses
            self.damaged += damaged

    def may_write(self, size: int) -> bool:
        """Whether that many bytes may go to the disk now."""
        if self.pack is None or self._stopped:
            return False
        try:
            free = free_bytes(self.pack.folder)
        except OSError as error:
            self._stopped = f"nothing more is written: {error}"
            return False
        short = free - size < self._reserve
        self._paused = ""
        if short:
            self._paused = f"writing pauses: {_gigabytes(free)} free, {_gigabytes(self._reserve)} reserved"
        return not short

    def write(self, numbers: Indices, leaves: Sequence[Bytes], seen: Sums) -> int:
        """Write what may be written; how many rows. A disk that fails is not written to again."""
        if self.pack is None or not self.may_write(len(numbers) * self.pack.stride):
            return 0
        try:
            return self.pack.write(numbers, leaves, seen)
        except OSError as error:
            self._stopped = f"nothing more is written: {error}"
            return 0

    def sync(self) -> None:
        """Have what was written on the disk."""
        try:
            if self.pack is not None and not self._stopped:
                self.pack.sync()
        except OSError as error:
            self._stopped = f"nothing more is written: {error}"

    @property
    def refused(self) -> str:
        return self._stopped if self.pack is None else ""

    @property
    def why(self) -> str:
        pack = self.pack
        if pack is None:
            return f"not on disk, every sample comes from the source: {self._stopped}"
        size = _gigabytes(pack.kept * pack.stride)
        said = f"disk: {pack.kept} of {pack.content.samples} samples, {size}, in {pack.folder}"
        return "; ".join(part for part in (said, self._stopped or self._paused) if part)


def _bytes_of(tensor: torch.Tensor, leaf: Leaf) -> Bytes:
    """A row of bytes for each sample: a view, unless it lies on a device, scattered, or not as it reads."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    rows: Bytes = dense.view(-1).view(torch.uint8).view(len(tensor), leaf.bytes).numpy()
    return rows


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
