"""Original, reconstruction and difference beside each other, a row for each patch."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.workloads import png

# A difference of a quarter of the range is drawn in full colour: speckle alone is about a twentieth.
_MOST = 0.25
_GAP = 4


def draw_gallery(patches: torch.Tensor, rebuilt: torch.Tensor, path: Path) -> Path:
    """Write the picture of two batches (B, 1, H, W) with values from 0 to 1."""
    return png.write(path, lay_out(patches, rebuilt))


def lay_out(patches: torch.Tensor, rebuilt: torch.Tensor) -> NDArray[np.uint8]:
    """Its pixels."""
    originals, others = (batch[:, 0].detach().float().cpu().numpy() for batch in (patches, rebuilt))
    rows: list[NDArray[np.uint8]] = []
    for one, other in zip(originals, others, strict=True):
        cells = [_as_colours(one), _as_colours(other), png.as_difference(other - one, _MOST)]
        rows.append(_join(cells, axis=1))
    return _join(rows, axis=0)


def _as_colours(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.repeat(png.as_grey(values)[..., None], 3, axis=-1)


def _join(parts: list[NDArray[np.uint8]], axis: int) -> NDArray[np.uint8]:
    """One after the other, with a white gap between."""
    shape = list(parts[0].shape)
    shape[axis] = _GAP
    gap = np.full(shape, 255, np.uint8)
    spaced = [piece for part in parts for piece in (gap, part)][1:]
    return np.concatenate(spaced, axis=axis)
