"""Sets of SAR patches as `.npy` shards, laid out as the real one: made at any size, or sparse at full size.

The real set has 696,278 patches of 256x256 float32 in 44 files of different lengths, 182 GB.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from stoker.errors import UsageError
from stoker.feed.whole_file import whole_file
from stoker.workloads.sar.scenes import LOOKS, SIDE, draw_patch

REAL_SAMPLES, REAL_FILES = 696_278, 44
# float32 counts exactly up to here, so that the number of a sample can stand in one of its pixels.
_MOST_IDS = 2**24


def make_shards(
    folder: Path, *, samples: int, files: int, seed: int = 0, side: int = SIDE, looks: int = LOOKS
) -> Path:
    """Make a set, unless it is there already; each file appears whole or not at all.

    Sample k is the same for a seed whatever the number of samples and files.
    """
    lengths = share_out(samples, files, seed)

    def make(name: str, first: int, length: int) -> None:
        path = folder / name
        if path.exists():
            return
        with whole_file(path) as file:
            _write_header(file, length, side)
            for number in range(first, first + length):
                file.write(draw_patch(seed, number, side=side, looks=looks).tobytes())

    _each_shard(lengths, make)
    return folder


def make_sparse(folder: Path, *, samples: int = REAL_SAMPLES, files: int = REAL_FILES, seed: int = 0) -> Path:
    """A set of full size in which each sample is its own number, in its first pixel, and zeros.

    The zeros are holes: 182 GB take one block a sample on a disk whose file system has them.
    """
    if samples > _MOST_IDS:
        raise UsageError(f"{samples} samples: float32 counts only {_MOST_IDS} of them exactly")
    stride = SIDE * SIDE * 4

    def make(name: str, first: int, length: int) -> None:
        with whole_file(folder / name) as file:
            _write_header(file, length, SIDE)
            start = file.tell()
            file.truncate(start + length * stride)
            for row, number in enumerate(np.arange(first, first + length, dtype="<f4")):
                file.seek(start + row * stride)
                file.write(number.tobytes())

    _each_shard(share_out(samples, files, seed), make)
    return folder


def share_out(samples: int, files: int, seed: int) -> NDArray[np.int64]:
    """The lengths of the files: ragged, from half to one and a half times the mean, at least one each."""
    if not 1 <= files <= samples:
        raise UsageError(f"{samples} samples in {files} files: take at least one file, and a sample for each")
    weights = np.random.Generator(np.random.Philox(key=[seed, files])).uniform(0.5, 1.5, files)
    ends = np.rint(np.cumsum(weights) / weights.sum() * (samples - files)).astype(np.int64)
    lengths: NDArray[np.int64] = np.diff(ends, prepend=0) + 1
    return lengths


def _each_shard(lengths: NDArray[np.int64], make: Callable[[str, int, int], None]) -> None:
    firsts = np.cumsum(lengths) - lengths
    names = [f"scene_{number:03d}.npy" for number in range(len(lengths))]
    # A patch's products of matrices are small: BLAS threads of their own made a patch take 48 ms, not 6.
    cores = os.cpu_count() or 1
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(min(len(names), cores)) as threads:
        for _ in threads.map(make, names, firsts.tolist(), lengths.tolist()):
            pass


def _write_header(file: BinaryIO, length: int, side: int) -> None:
    about = {"descr": "<f4", "fortran_order": False, "shape": (length, side, side)}
    np.lib.format.write_array_header_1_0(file, about)
