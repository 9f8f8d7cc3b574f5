"""One `.npy` file: its header, and its values as a memory map."""

import mmap
import os
import weakref
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import SourceBroken, SourceChanged

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NpyFile:
    """What a header says of its file, and the file's size and time when it was read."""

    path: Path
    dtype: np.dtype[Any]
    shape: Shape
    offset: int
    size: int
    mtime_ns: int

    def open(self) -> "NpyMap":
        """The values, mapped and not read; SourceChanged when the file is no longer the one described."""
        try:
            file = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise SourceChanged(
                f"{self.path} cannot be opened any more: {error.strerror}. Put it back, or make the source "
                "anew."
            ) from error
        try:
            self.require(file)
            return NpyMap(self, file, mmap.mmap(file, 0, access=mmap.ACCESS_READ))
        except BaseException:
            os.close(file)
            raise

    def require(self, file: int) -> None:
        """SourceChanged where the open file is no longer as it was described."""
        now = os.fstat(file)
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceChanged(
                f"{self.path} was changed after the source was made: {self.size} bytes then, "
                f"{now.st_size} now. Make the source anew."
            )


class NpyMap:
    """The values of a file as a read-only array; unmapped when neither this nor `values` is held."""

    def __init__(self, described: NpyFile, file: int, mapped: mmap.mmap) -> None:
        flat = np.frombuffer(mapped, described.dtype, count=prod(described.shape), offset=described.offset)
        self.values: NDArray[Any] = flat.reshape(described.shape)
        self._mapped, self._offset = mapped, described.offset
        self._described, self._file = described, file
        weakref.finalize(self, os.close, file)

    def check(self) -> None:
        """SourceChanged where the file was written to since. Before a read: a cut file ends the process.

        And after it: what was read may have been written meanwhile.
        """
        self._described.require(self._file)

    def want(self, rows: NDArray[np.int64]) -> None:
        """Ask the kernel for these rows, all at once, before they are read one after the other.

        Rows of 256 KB in random order that were not in memory, 64 a batch: 0.17 GB/s without, 0.74 to 1.06
        with. The other advice, MADV_RANDOM, turned read-ahead off: 0.07.
        """
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        length = self.values.itemsize * prod(self.values.shape[1:])
        starts = self._offset + rows * length
        pages = np.unique(starts // mmap.PAGESIZE) * mmap.PAGESIZE
        for page in pages.tolist():
            self._mapped.madvise(mmap.MADV_WILLNEED, page, length + mmap.PAGESIZE)


def read_header(path: Path) -> NpyFile:
    """The header of a file, with none of its values; SourceBroken when it is not one that can be mapped."""
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _parse(file, path)
            offset, now = file.tell(), os.fstat(file.fileno())
    except OSError as error:
        raise SourceBroken(f"cannot read {path}: {error.strerror}; mend it, or leave it out") from error
    if dtype.hasobject:
        raise SourceBroken(
            f"{path} holds pickled objects, which are never loaded. Save it as an array of numbers."
        )
    if fortran:
        raise SourceBroken(
            f"{path} is in Fortran order: its first axis is not the one that lies together. "
            "Save it anew as np.save(path, np.ascontiguousarray(array))."
        )
    needed = offset + dtype.itemsize * prod(shape)
    if now.st_size != needed:
        wrong = "is cut short" if now.st_size < needed else "holds more than its header says"
        raise SourceBroken(
            f"{path} {wrong}: {now.st_size} bytes, and its header asks for {needed} ({dtype} {shape}). "
            "Write the file anew."
        )
    return NpyFile(
        path=path, dtype=dtype, shape=shape, offset=offset, size=now.st_size, mtime_ns=now.st_mtime_ns
    )


def _parse(file: BinaryIO, path: Path) -> tuple[Shape, bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)
    except (ValueError, EOFError, SyntaxError, TokenError) as error:  # the last two of a header that is cut
        raise SourceBroken(f"{path} is no .npy file: {error}; write it anew, or leave it out") from error
    # Version 3 differs in one thing: names of columns beyond Latin-1. A sample of named columns is no tensor.
    raise SourceBroken(
        f"{path} has version {version[0]}.{version[1]} of the format; 1.0 and 2.0 can be read. "
        "Save it as a plain array of numbers."
    )


def torch_dtype(dtype: np.dtype[Any], name: str) -> torch.dtype:
    """What torch calls this type, whatever its byte order; SourceBroken where torch has none."""
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError as error:
        raise SourceBroken(
            f"{name} holds {dtype}, for which torch has no type. Save it as a float, an integer or bool."
        ) from error
