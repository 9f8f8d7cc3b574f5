"""Pictures for tests: smooth, so that JPEG changes them little; each has a colour of its own."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pixels(number: int, height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    """A gradient; red tells the number, green and blue the place."""
    down, across = np.mgrid[0:height, 0:width]
    red = np.full((height, width), number * 37 % 256)
    return np.stack([red, down * 255 // height, across * 255 // width], axis=2).astype(np.uint8)


def encoded(
    number: int, kind: str = "JPEG", *, mode: str = "RGB", height: int = 48, width: int = 64
) -> bytes:
    """The same as a file's bytes."""
    buffer = io.BytesIO()
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    Image.fromarray(pixels(number, height, width)).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def write_classes(root: Path, counts: dict[str, int]) -> dict[str, int]:
    """Class folders with so many pictures each; every file's key and the number in its colour."""
    numbers: dict[str, int] = {}
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for index in range(count):
            kind, suffix = (("JPEG", "JPEG"), ("PNG", "png"), ("JPEG", "jpg"))[index % 3]
            key = f"{name}/{name}_{index}.{suffix}"
            numbers[key] = len(numbers)
            (root / key).write_bytes(encoded(numbers[key], kind))
    return numbers
