"""Numbered samples, as each source has them: of every sample that is handed out, its number can be told.

The values of a sample follow from its number alone, so one that was torn, mixed up or made up is known.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.images import ImageSource
from stoker.feed.sources.npy import NpySource
from stoker.feed.sources.sql import Column, SqlSource
from stoker.feed.sources.volume import VolumeSource
from stoker.workloads import png

COUNT = 96
NUMBERS = 8
SHARD = 12
# Sides of a patch, and of the volume that has as many of them as there are samples.
PATCH, SPACE = 4, (24, 16, 16)
CLASSES = 4
SIDE = 8
# A sample that is none of ours.
WRONG = -1
# Stands in every fifth sample of a set that is made with it.
NAN_EVERY = 5


def row_of(number: int, numbers: int = NUMBERS, *, nan: bool = False) -> NDArray[np.float32]:
    """The values of a sample."""
    row = ((number * 31 + np.arange(numbers) * 7) % 251).astype(np.float32)
    row[0] = number
    if nan and number % NAN_EVERY == 0:
        row[-1] = np.nan
    return row


def rows_of(begin: int, end: int, numbers: int = NUMBERS, *, nan: bool = False) -> NDArray[np.float32]:
    """Those of several."""
    return np.stack([row_of(number, numbers, nan=nan) for number in range(begin, end)])


def pixels_of(number: int, side: int = SIDE) -> NDArray[np.uint8]:
    """The picture of a sample: one colour, which is its number."""
    return np.full((side, side, 3), (number >> 8, number & 255, 77), np.uint8)


def image_name(number: int) -> str:
    """Where its file lies among the others."""
    return f"class{number % CLASSES}/{number:05}.png"


def volume() -> NDArray[np.uint16]:
    """A volume in which every voxel has its own number."""
    return np.arange(np.prod(SPACE), dtype=np.uint16).reshape(SPACE)


def make(kind: str, folder: Path, *, count: int = COUNT, numbers: int = NUMBERS, nan: bool = False) -> Path:
    """The set of one source in a folder; what it is opened by."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind in ("npy", "stumbling"):
        for begin in range(0, count, SHARD):
            values = rows_of(begin, min(count, begin + SHARD), numbers, nan=nan)
            np.save(folder / f"{begin:05}.npy", values)
    elif kind == "images":
        for number in range(count):
            png.write(folder / image_name(number), pixels_of(number))
    elif kind == "volume":
        np.save(folder / "volume.npy", volume())
    elif kind == "sqlite":
        make_table(folder / "samples.db", count=count, numbers=numbers, nan=nan)
    return folder


def make_table(path: Path, *, count: int = COUNT, numbers: int = NUMBERS, nan: bool = False) -> None:
    """An SQLite file with a row a sample."""
    rows = [(number, row_of(number, numbers, nan=nan).tobytes()) for number in range(count)]
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, x BLOB NOT NULL)")
        connection.executemany("INSERT INTO samples VALUES (?, ?)", rows)
    connection.close()


class Numbered(Dataset[torch.Tensor]):
    """A map-style dataset, as a user writes one; `ragged` samples grow from one to the next."""

    def __init__(self, count: int, numbers: int, *, nan: bool = False, ragged: bool = False) -> None:
        self.count, self.numbers, self.nan, self.ragged = count, numbers, nan, ragged

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        if not 0 <= number < self.count:
            raise IndexError(number)
        return torch.from_numpy(row_of(number, self.numbers + number * self.ragged, nan=self.nan))


class Stumbling(Source):
    """A source of a user's own whose disk fails once, in whichever thread reads when its flag is up."""

    def __init__(self, folder: Path, flag: Path) -> None:
        self._inner = NpySource(folder)
        self._flag = flag

    def __len__(self) -> int:
        return len(self._inner)

    def read(self, indices: Indices) -> Any:
        """A batch; OSError while the flag is there, which goes with it."""
        try:
            self._flag.unlink()
        except FileNotFoundError:
            return self._inner.read(indices)
        raise OSError(5, "the disk of this source fails, once")

    def fingerprint(self) -> str:
        """Its folder's."""
        return self._inner.fingerprint()


def open_source(kind: str, where: str, told: Mapping[str, Any]) -> Any:
    """The source or dataset of a kind, as a script of the campaign opens it."""
    if kind == "npy":
        return NpySource(where)
    if kind == "stumbling":
        return Stumbling(Path(where), Path(told["flag"]))
    if kind in ("images", "s3"):
        return ImageSource(where, options=told.get("options"), keep=told.get("keep"))
    if kind == "volume":
        return VolumeSource(Path(where) / "volume.npy", patch=(PATCH,) * 3, mode="grid")
    if kind == "torch":
        flags = {name: bool(told.get(name)) for name in ("nan", "ragged")}
        return Numbered(int(told.get("count", COUNT)), int(told.get("numbers", NUMBERS)), **flags)
    if kind == "sqlite":
        shape = (int(told.get("numbers", NUMBERS)),)
        columns = {"x": Column(dtype=torch.float32, shape=shape)}
        return SqlSource(f"sqlite:///{where}/samples.db", "SELECT id, x FROM samples", columns=columns)
    if kind == "postgres":
        return SqlSource(where, "SELECT id, x FROM samples")
    raise ValueError(f"no kind of samples {kind!r}")


def numbers_of(kind: str, batch: Any, *, nan: bool = False) -> list[int]:
    """The numbers of the samples in a batch; WRONG for one that is not what its number says."""
    if kind in ("images", "s3"):
        return [_of_pixels(image) for image in batch[0].numpy()]
    if kind == "volume":
        return [_of_patch(patch[0]) for patch in batch["image"].numpy()]
    if kind in ("sqlite", "postgres"):
        found = [_of_row(row, nan) for row in batch["x"].numpy()]
        return [one if one == told else WRONG for one, told in zip(found, batch["id"].tolist(), strict=True)]
    return [_of_row(row, nan) for row in batch.numpy()]


def _of_row(row: NDArray[np.float32], nan: bool) -> int:
    if not len(row) or not np.isfinite(row[0]):
        return WRONG
    number = int(row[0])
    return number if np.array_equal(row, row_of(number, len(row), nan=nan), equal_nan=True) else WRONG


def _of_pixels(image: NDArray[np.uint8]) -> int:
    number = (int(image[0, 0, 0]) << 8) + int(image[1, 0, 0])
    return number if np.array_equal(image.transpose(1, 2, 0), pixels_of(number, image.shape[1])) else WRONG


def _of_patch(patch: NDArray[np.uint16]) -> int:
    first = int(patch[0, 0, 0])
    if first >= np.prod(SPACE):
        return WRONG
    z, y, x = (int(part) for part in np.unravel_index(first, SPACE))
    cut = volume()[z : z + PATCH, y : y + PATCH, x : x + PATCH]
    if not np.array_equal(patch, cut):
        return WRONG
    across = [length // PATCH for length in SPACE]
    return (z // PATCH * across[1] + y // PATCH) * across[2] + x // PATCH
