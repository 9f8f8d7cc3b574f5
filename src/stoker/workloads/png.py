"""PNG files from arrays, by the standard library alone: a training ends with a picture on any machine."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.feed.whole_file import whole_file

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """A file's bytes: grey from (height, width), colours from (height, width, 3)."""
    coloured = pixels.ndim == 3 and pixels.shape[-1] == 3
    if pixels.dtype != np.uint8 or not (coloured or pixels.ndim == 2) or not pixels.size:
        raise UsageError(
            f"pixels of {pixels.shape} {pixels.dtype}: give uint8, (height, width) or (height, width, 3)"
        )
    height, width = pixels.shape[:2]
    # Each row begins with the number of its filter: none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB if coloured else _GREY, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def write(path: Path, pixels: NDArray[np.uint8]) -> Path:
    """Put a file there, whole or not at all."""
    with whole_file(path) as file:
        file.write(encode(pixels))
    return path


def as_grey(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Values from 0 to 1 as pixels; what lies beyond is at the edge."""
    pixels: NDArray[np.uint8] = (np.clip(values, 0, 1) * 255 + 0.5).astype(np.uint8)
    return pixels


def as_difference(values: NDArray[Any], most: float) -> NDArray[np.uint8]:
    """Differences as colours: white is none, red `most` too much, blue `most` too little."""
    share = np.clip(values / most, -1, 1)
    fading = 1 - np.abs(share)
    red, blue = np.where(share > 0, 1.0, fading), np.where(share < 0, 1.0, fading)
    return as_grey(np.stack([red, fading, blue], axis=-1))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
