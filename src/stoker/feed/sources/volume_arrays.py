"""Volumes as they are stored: in memory, in a `.npy` file, or in chunks as zarr (v2, v3) or n5.

What a volume is comes from its own metadata, read here: tensorstore is not needed before the first patch.
"""

import hashlib
import json
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.arguments import checked_path
from stoker.feed.sources.chunk_reader import ChunkedArray
from stoker.feed.sources.npy_file import NpyFile, Shape, read_header, torch_dtype
from stoker.feed.sources.patches import Corners, Size

# So many files of a chunked volume are looked at for its fingerprint, 0.1 s or so.
_FINGERPRINTED = 20_000
# So many values of an array in memory.
_HASHED = 65_536


@dataclass(frozen=True, kw_only=True)
class Volume(ABC):
    """An array of (depth, height, width), or of (channels, depth, height, width)."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def channels(self) -> int:
        """How many; 1 where there is no axis of them."""
        return self.shape[0] if len(self.shape) == 4 else 1

    @property
    def space(self) -> Size:
        """Depth, height and width."""
        depth, height, width = self.shape[-3:]
        return depth, height, width

    @property
    def chunk(self) -> Size | None:
        """Depth, height and width of what is decoded at once; None where nothing is."""
        return None

    @abstractmethod
    def count_touched(self, corners: Corners, size: Size) -> tuple[int, int]:
        """How many chunks (or pages) boxes at these corners lie in, each counted once, and their bytes."""

    @abstractmethod
    def digest(self) -> str:
        """Of what is cheap to tell of its contents."""

    def tell_apart(self) -> str:
        """What tells it from another one with the same digest: where it lies."""
        return os.path.realpath(self.name)


@dataclass(frozen=True, kw_only=True)
class HeldVolume(Volume):
    """In memory."""

    values: NDArray[Any]

    def count_touched(self, corners: Corners, size: Size) -> tuple[int, int]:
        """Nothing but what is used."""
        return 0, len(corners) * self.channels * prod(size) * self.dtype.itemsize

    def digest(self) -> str:
        """Of some of its values, evenly spread: a change between them is not noticed."""
        flat = self.values.reshape(-1)
        spread = flat[:: max(1, flat.size // _HASHED)]
        return hashlib.sha256(f"{self.shape} {self.dtype}\0".encode() + spread.tobytes()).hexdigest()

    def tell_apart(self) -> str:
        """Of all its values, at 2 GB/s: two sets of labels may differ in a few voxels."""
        hashed = hashlib.sha256()
        for part in self.values:
            hashed.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        return hashed.hexdigest()


@dataclass(frozen=True, kw_only=True)
class MappedVolume(Volume):
    """In a `.npy` file."""

    file: NpyFile

    def count_touched(self, corners: Corners, size: Size) -> tuple[int, int]:
        """Pages of the file: the kernel reads these, though a row of a patch may be short."""
        pages = [np.empty(0, np.int64), *(self._pages(box, size) for box in corners.tolist())]
        count = len(np.unique(np.concatenate(pages)))
        return count, count * mmap.PAGESIZE

    def _pages(self, corner: list[int], size: Size) -> NDArray[np.int64]:
        channel = np.arange(self.channels)[:, None, None]
        z = np.arange(corner[0], corner[0] + size[0])[None, :, None]
        y = np.arange(corner[1], corner[1] + size[1])[None, None, :]
        depth, height, width = self.space
        rows = (((channel * depth + z) * height + y) * width + corner[2]) * self.dtype.itemsize
        first = (rows.reshape(-1) + self.file.offset) // mmap.PAGESIZE
        last = (rows.reshape(-1) + self.file.offset + size[2] * self.dtype.itemsize - 1) // mmap.PAGESIZE
        most = int((last - first).max()) + 1
        pages = first[:, None] + np.arange(most)
        return np.unique(pages[pages <= last[:, None]])

    def digest(self) -> str:
        """Of its size and time."""
        told = f"{self.shape} {self.dtype} {self.file.size} {self.file.mtime_ns}"
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ChunkedVolume(Volume):
    """As zarr or n5."""

    path: Path
    driver: str
    chunks: Shape
    """What is decoded at once, axis by axis as in `shape`; inside a shard, its inner chunk."""

    @property
    def chunk(self) -> Size:
        """Depth, height and width of a chunk."""
        depth, height, width = self.chunks[-3:]
        return depth, height, width

    @property
    def array(self) -> ChunkedArray:
        """For a reader."""
        channels = self.channels if len(self.shape) == 4 else None
        return ChunkedArray(path=str(self.path), driver=self.driver, dtype=self.dtype, channels=channels)

    def count_touched(self, corners: Corners, size: Size) -> tuple[int, int]:
        """Whole chunks: to read one value of it, all of it is decoded."""
        grid = [-(-length // side) for length, side in zip(self.space, self.chunk, strict=True)]
        seen: set[int] = set()
        for first, last in zip(
            (corners // self.chunk).tolist(), ((corners + size - 1) // self.chunk).tolist(), strict=True
        ):
            z, y, x = (range(low, high + 1) for low, high in zip(first, last, strict=True))
            seen.update((a * grid[1] + b) * grid[2] + c for a, b, c in product(z, y, x))
        over_channels = -(-self.channels // self.chunks[0]) if len(self.shape) == 4 else 1
        count = len(seen) * over_channels
        return count, count * prod(self.chunks) * self.dtype.itemsize

    def digest(self) -> str:
        """Of the names, sizes and times of its files, of the first 20,000 where there are more."""
        hashed = hashlib.sha256(f"{self.shape} {self.dtype} {self.chunks}".encode())
        for entry in islice(_files_below(self.path, ""), _FINGERPRINTED):
            hashed.update(entry.encode("utf-8", "surrogateescape"))
        return hashed.hexdigest()


def describe_volume(given: Any, what: str) -> Volume:
    """What is to be read: an array, a tensor, or the path of a `.npy` file or a zarr or n5 array."""
    volume = _describe(given, what)
    if len(volume.shape) not in (3, 4):
        raise SourceBroken(
            f"{volume.name} has shape {volume.shape}: 3 axes are needed (depth, height, width), or 4 with "
            "channels first"
        )
    torch_dtype(volume.dtype, volume.name)
    return volume


def _describe(given: Any, what: str) -> Volume:
    if isinstance(given, torch.Tensor):
        try:
            given = given.detach().cpu().numpy()
        except TypeError as error:
            raise SourceBroken(
                f"the {what} tensor is {given.dtype}, which numpy lacks: convert it"
            ) from error
    if isinstance(given, np.ndarray):
        native = given.astype(given.dtype.newbyteorder("="), copy=False)
        return HeldVolume(name=f"the {what} array", shape=given.shape, dtype=native.dtype, values=native)
    named = checked_path(f"the {what} volume", given, "an array, or the path of one as .npy, zarr or n5")
    if "://" in named:
        raise UsageError(f"{named} is not on this machine: copy it first, e.g. with `stoker stage`")
    path = Path(named).absolute()
    if path.is_file():
        file = read_header(path)
        native_type = file.dtype.newbyteorder("=")
        return MappedVolume(name=str(path), shape=file.shape, dtype=native_type, file=file)
    if not path.is_dir():
        raise UsageError(f"no {what} volume {path}: give a .npy file, or the folder of a zarr or n5 array")
    return _describe_folder(path)


def _describe_folder(path: Path) -> Volume:
    try:
        if (path / "zarr.json").is_file():
            told = _load(path / "zarr.json")
            if told.get("node_type", "array") == "array":
                shape, chunks, kind = tuple(told["shape"]), _zarr3_chunks(told), told["data_type"]
                return _chunked(path, "zarr3", shape, chunks, kind)
        elif (path / ".zarray").is_file():
            told = _load(path / ".zarray")
            return _chunked(path, "zarr", tuple(told["shape"]), tuple(told["chunks"]), told["dtype"])
        elif (path / "attributes.json").is_file():
            told = _load(path / "attributes.json")
            if "dimensions" in told:
                # n5 names the axis that runs fastest first; here, as in zarr's own n5 store, it comes last.
                shape, chunks = tuple(told["dimensions"][::-1]), tuple(told["blockSize"][::-1])
                return _chunked(path, "n5", shape, chunks, told["dataType"])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise SourceBroken(
            f"the metadata of {path} cannot be understood: {error!r}; write the array anew"
        ) from error
    inside = sorted(found.parent.relative_to(path).as_posix() for found in _arrays_below(path))
    hint = (
        f"name one of the arrays in it: {', '.join(inside[:5])}"
        if inside
        else "there is none in it either; give the folder of one, or a .npy file"
    )
    raise UsageError(f"{path} is no zarr or n5 array: {hint}")


def _chunked(path: Path, driver: str, shape: Shape, chunks: Shape, kind: Any) -> ChunkedVolume:
    dtype = np.dtype(kind)
    if len(chunks) != len(shape) or min(chunks, default=1) < 1:
        raise ValueError(f"chunks {chunks} for shape {shape}")
    return ChunkedVolume(
        name=str(path), shape=shape, dtype=dtype.newbyteorder("="), path=path, driver=driver, chunks=chunks
    )


def _zarr3_chunks(told: dict[str, Any]) -> Shape:
    grid = told["chunk_grid"]
    if grid["name"] != "regular":
        raise ValueError(f"chunk grid {grid['name']!r}; a regular one can be read")
    chunks: list[int] = list(grid["configuration"]["chunk_shape"])
    codecs, axes = told["codecs"], list(range(len(chunks)))
    while codecs:
        codec, *codecs = codecs
        if codec["name"] == "transpose":
            axes = [axes[axis] for axis in codec["configuration"]["order"]]
        elif codec["name"] == "sharding_indexed":
            for axis, side in zip(axes, codec["configuration"]["chunk_shape"], strict=True):
                chunks[axis] = side
            codecs = codec["configuration"]["codecs"]
    return tuple(chunks)


def _load(path: Path) -> dict[str, Any]:
    told = json.loads(path.read_text())
    if not isinstance(told, dict):
        raise TypeError(f"{path.name} holds a {type(told).__name__}")
    return told


def _arrays_below(path: Path) -> Iterator[Path]:
    """Metadata of arrays one and two folders down."""
    for depth in ("*", "*/*"):
        for name, mark in (
            (".zarray", "chunks"),
            ("zarr.json", "chunk_grid"),
            ("attributes.json", "dimensions"),
        ):
            yield from (found for found in path.glob(f"{depth}/{name}") if mark in found.read_text())


def _files_below(path: Path, inner: str) -> Iterator[str]:
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from _files_below(path / entry.name, f"{inner}{entry.name}/")
            else:
                told = entry.stat()
                yield f"\0{inner}{entry.name}\0{told.st_size}\0{told.st_mtime_ns}"
