"""Photographs with what the model takes them for: a green frame where it is right, a red one where not."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from stoker.feed.sources.images import ImageSource
from stoker.feed.transforms import ImageTransform
from stoker.workloads import png

_ROWS, _COLUMNS = 4, 8
_FRAME = 3
_RIGHT, _WRONG = (40, 160, 60), (200, 40, 40)


def draw_guesses(
    model: nn.Module, source: ImageSource, transform: ImageTransform, device: torch.device, path: Path
) -> Path:
    """Write the picture: photographs from all over the source, as the model sees them."""
    chosen = np.unique(np.linspace(0, len(source) - 1, _ROWS * _COLUMNS).astype(np.int64))
    photos, labels = source.read(chosen)
    seen = transform((photos.to(device), labels), samples=chosen, seed=0, epoch=0)[0]
    right = model(seen).argmax(dim=1).cpu() == labels
    framed = [_frame(photo, bool(hit)) for photo, hit in zip(photos.numpy(), right, strict=True)]
    framed += [np.full_like(framed[0], 255)] * (-len(framed) % _COLUMNS)
    rows = [np.concatenate(framed[at : at + _COLUMNS], axis=1) for at in range(0, len(framed), _COLUMNS)]
    return png.write(path, np.concatenate(rows))


def _frame(photo: NDArray[np.uint8], right: bool) -> NDArray[np.uint8]:
    """(C, H, W) to (H, W, C), with a frame around it."""
    height, width = photo.shape[1:]
    framed = np.empty((height + 2 * _FRAME, width + 2 * _FRAME, 3), np.uint8)
    framed[:] = _RIGHT if right else _WRONG
    framed[_FRAME:-_FRAME, _FRAME:-_FRAME] = photo.transpose(1, 2, 0)
    return framed
