"""Samples from a folder of `.npy` shards, memory-mapped: the set may be larger than memory."""

import hashlib
import os
import threading
import time
from collections import OrderedDict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.arguments import checked_count, checked_path
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices, Source, checked, told_apart
from stoker.feed.sources.npy_file import NpyFile, NpyMap, read_header, torch_dtype
from stoker.feed.sources.npy_metadata import Columns, read_metadata
from stoker.feed.tiers.batch_memory import fresh_batch

# A sample of this many bytes or more is asked for ahead and copied by itself, straight into its row of the
# batch: numpy's gather of many goes through a copy of its own (256 KB rows in memory: 6 GB/s one by one, 2.5
# gathered). For small samples the walk in Python costs more than that copy (512 bytes: 0.7 us against 0.3),
# and asking more than the read (1 us a sample); the kernel's own read-ahead brings their neighbours along.
_LARGE = 16384
# Bytes a second: what is read more slowly was not in memory. Rows of 98 KB that are come at 7 GB/s and more,
# and asking for each of them costs a ninth of that; those that are not came at 1 GB/s at the most.
_IN_MEMORY = 2e9
_PAGE = 4096


class NpySource(Source):
    """Every sample of every shard, in the order of the shards' names.

    A shard is an array with one sample a row; all have the same type and sample shape, and any length.
    Only headers are read at the start. A sample is a tensor; with `metadata` it is a dict of `field` and the
    further names there (`npy_metadata` tells the forms).

    >>> NpySource("shards")  # doctest: +SKIP
    NpySource(696278 samples of (256, 256) float32 in 44 files)

    Args:
        folder: where the shards are.
        pattern: which files are shards; `**/*.npy` looks into folders below.
        field: what the samples are called beside metadata.
        metadata: a file with more about each sample, from `folder` if relative.
        max_open: so many files are mapped at most; those unused for longest are closed.
    """

    def __init__(
        self,
        folder: str | Path,
        pattern: str = "*.npy",
        *,
        field: str = "data",
        metadata: str | Path | None = None,
        max_open: int = 64,
    ) -> None:
        max_open = checked_count("max_open", max_open, "files")
        self.folder = Path(checked_path("folder", folder, "the one that the .npy shards are in")).absolute()
        self.field = field
        described = self.folder / metadata if metadata is not None else None
        self._files = _find_shards(self.folder, pattern, described)
        first = _check_alike(self._files)
        self.sample_shape, self.dtype = first.shape[1:], torch_dtype(first.dtype, str(first.path))
        self._ends: Indices = np.cumsum([file.shape[0] for file in self._files], dtype=np.int64)
        self._columns: Columns = {}
        if described is not None:
            names = {file.path.relative_to(self.folder).as_posix(): file.shape[0] for file in self._files}
            self._columns = read_metadata(described, names)
            if field in self._columns:
                raise UsageError(
                    f"{described} describes {field!r}, which is what the samples are called. "
                    "Give them another name: NpySource(field=...)."
                )
        self._fingerprint = _digest(self.folder, self._files, described)
        self._kept_as: str | None = None
        self._maps = PerProcess(partial(_Maps, self._files, max_open))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"NpySource({len(self)} samples of {self.sample_shape} {kind} in {len(self._files)} files)"

    def read(self, indices: Indices) -> Any:
        """The rows of these samples, copied once, from the maps into the batch."""
        indices = checked(indices, len(self))
        batch = fresh_batch((len(indices), *self.sample_shape), self.dtype)
        self._gather(indices, batch.numpy())
        if not self._columns:
            return batch
        return {self.field: batch} | {name: _choose(of, indices) for name, of in self._columns.items()}

    def fingerprint(self) -> str:
        """Of the names, sizes and times of the files as they were when the source was made."""
        return self._fingerprint

    def kept_as(self) -> str:
        """Of the folder and a little of each shard too: those of one archive may have all else in common."""
        if self._kept_as is None:
            parts = (_part_digest(file) for file in self._files)
            self._kept_as = told_apart(self._fingerprint, os.path.realpath(self.folder), *parts)
        return self._kept_as

    def _gather(self, indices: Indices, batch: NDArray[Any]) -> None:
        shards = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(shards, kind="stable")
        cuts = np.flatnonzero(np.diff(shards[order])) + 1
        bounds = [0, *cuts.tolist(), len(order)] if len(order) else []
        maps = self._maps.get()
        large = batch[:1].nbytes >= _LARGE
        parts = []
        for begin, end in pairwise(bounds):
            places = order[begin:end]
            shard = int(shards[places[0]])
            rows = indices[places] - (self._ends[shard] - self._files[shard].shape[0])
            parts.append((shard, places, rows))
            # Those beyond would close what was asked for first.
            if large and maps.waits and len(parts) <= maps.most:
                maps.get(shard).want(rows)
        began = time.perf_counter()
        for shard, places, rows in parts:
            mapped = maps.get(shard)
            mapped.check()
            values = mapped.values
            if len(parts) == 1 and values.dtype == batch.dtype:
                np.take(values, rows, axis=0, out=batch, mode="clip")  # which needs no copy of its own
            elif large:
                for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                    batch[place] = values[row]
            else:
                batch[places] = values[rows]
            mapped.check()
        maps.waits = batch.nbytes < _IN_MEMORY * (time.perf_counter() - began)


class _Maps:
    """The files that are mapped, those used last kept. Threads may share it."""

    def __init__(self, files: list[NpyFile], most: int) -> None:
        self.most = most
        # Whether the last batch was slower than what lies in memory: then rows are asked for ahead.
        self.waits = True
        self._files = files
        self._open: OrderedDict[int, NpyMap] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: int) -> NpyMap:
        with self._lock:
            mapped = self._open.pop(shard, None) or self._files[shard].open()
            self._open[shard] = mapped
            # Whoever still reads from one that goes holds it until done.
            if len(self._open) > self.most:
                self._open.popitem(last=False)
            return mapped


def _find_shards(folder: Path, pattern: str, described: Path | None) -> list[NpyFile]:
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}: give the one that the .npy shards are in")
    try:
        paths = [path for path in folder.glob(pattern) if path != described]
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"pattern={pattern!r}: {error}; give one within the folder, like **/*.npy") from None
    for path in paths:
        if not path.is_file():  # left out without a word, its samples would be missing
            what = "a link that leads nowhere" if path.is_symlink() else "no file"
            raise SourceBroken(f"{path} is {what}: mend it, remove it, or leave it out by pattern")
    if not paths:
        raise UsageError(f"no file in {folder} is named like {pattern}: give another folder or pattern")
    return [read_header(path) for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix())]


def _check_alike(files: list[NpyFile]) -> NpyFile:
    """The first file, when the others are like it."""
    first = files[0]
    for file in files:
        if not file.shape:
            raise SourceBroken(f"{file.path} holds a single value: a shard needs an axis of samples first")
        if (file.dtype, file.shape[1:]) != (first.dtype, first.shape[1:]):
            raise SourceBroken(
                f"{file.path} holds samples of {file.shape[1:]} {file.dtype}, and {first.path.name} of "
                f"{first.shape[1:]} {first.dtype}: all shards must be alike. Leave it out by pattern, or "
                "convert it."
            )
    return first


def _choose(column: NDArray[Any] | list[Any], indices: Indices) -> Any:
    if isinstance(column, list):
        return [column[index] for index in indices.tolist()]
    return torch.from_numpy(column[indices])


def _part_digest(file: NpyFile) -> str:
    """Of a page each from the beginning, the middle and the end."""
    mapped = file.open()
    values = mapped.values.reshape(-1).view(np.uint8)
    hashed = hashlib.sha256()
    for begin in (0, (len(values) - _PAGE) // 2, len(values) - _PAGE):
        begin = max(0, begin)
        hashed.update(values[begin : begin + _PAGE].tobytes())
    mapped.check()
    return hashed.hexdigest()


def _digest(folder: Path, files: list[NpyFile], described: Path | None) -> str:
    digest = hashlib.sha256(b"npy 1")
    for file in files:
        name = file.path.relative_to(folder).as_posix()
        digest.update(f"\0{name}\0{file.size}\0{file.mtime_ns}".encode())
    if described is not None:
        told = described.stat()
        digest.update(f"\0metadata\0{described.name}\0{told.st_size}\0{told.st_mtime_ns}".encode())
    return digest.hexdigest()
