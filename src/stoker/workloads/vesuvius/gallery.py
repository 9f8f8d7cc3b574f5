"""A slice of a volume, what is labelled in it, and what was found, beside each other."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.workloads import png
from stoker.workloads.vesuvius.scrolls import SHEET, UNLABELLED

_GAP = 4
_SHEET_COLOUR, _UNKNOWN_COLOUR = np.array([255, 176, 0]), np.array([90, 110, 200])


def draw_slice(
    grey: NDArray[np.uint8], label: NDArray[np.uint8], chance: NDArray[np.float32], path: Path
) -> Path:
    """Write the picture: labels in yellow, unlabelled in blue, the chance of a sheet from dark to yellow."""
    return png.write(path, lay_out(grey, label, chance))


def lay_out(
    grey: NDArray[np.uint8], label: NDArray[np.uint8], chance: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Its pixels."""
    plain = np.repeat(grey[..., None], 3, axis=-1)
    told = np.where((label == UNLABELLED)[..., None], _mix(plain, _UNKNOWN_COLOUR, 0.5), plain)
    told = np.where((label == SHEET)[..., None], _mix(plain, _SHEET_COLOUR, 0.6), told)
    found = _mix(plain // 2, _SHEET_COLOUR, np.clip(chance, 0, 1)[..., None])
    gap = np.full((grey.shape[0], _GAP, 3), 255, np.uint8)
    return np.concatenate([plain, gap, told.astype(np.uint8), gap, found], axis=1)


def _mix(
    pixels: NDArray[np.uint8], colour: NDArray[np.int64], share: float | NDArray[np.float32]
) -> NDArray[np.uint8]:
    return (pixels * (1 - share) + colour * share).astype(np.uint8)
