"""A whole volume by a sliding window: overlapping patches, blended so that no seam is seen.

Windows are taken from the top, and a slice is done when no window to come reaches it: what is in memory is a
slab as deep as a patch, however deep the volume. Weights are Gaussian, as in nnU-Net: a network sees least at
a patch's edge.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from stoker.errors import UsageError
from stoker.feed import Feed
from stoker.feed.sources.patches import Size
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.sources.volume_arrays import describe_volume
from stoker.feed.transforms import BatchTransform
from stoker.workloads.vesuvius.scrolls import create_zarr

# Of a patch's side, the width of the blending weight; and the least weight, so that corners have one.
_SIGMA, _LEAST = 1 / 8, 1e-3


def check_overlap(overlap: float) -> None:
    """UsageError where a window of that overlap would not move on."""
    if not 0 <= overlap < 1:
        raise UsageError(
            f"overlap is {overlap}: it is the share of a window that the next one has too, from 0 to below 1"
        )


def slide(
    model: nn.Module,
    volume: Path | NDArray[np.uint8] | torch.Tensor,
    *,
    patch: Size,
    transform: BatchTransform,
    device: torch.device,
    overlap: float = 0.5,
    batch_size: int = 1,
) -> Iterator[tuple[int, torch.Tensor]]:
    """The chance of a sheet in every voxel, slab by slab: where a slab begins, and (depth, height, width).

    Slabs come from the top, without a gap and without overlap. `transform` is the one of the training without
    its flips.
    """
    check_overlap(overlap)
    stride = tuple(max(1, round(side * (1 - overlap))) for side in patch)
    windows = VolumeSource(volume, patch=patch, mode="grid", stride=stride)
    depth, height, width = describe_volume(volume, "volume").space
    corners = windows.corners(np.arange(len(windows))).tolist()
    weight = blending_weight(patch).to(device)
    total = torch.zeros((patch[0], height, width), device=device)
    weights = torch.zeros_like(total)
    top = number = 0
    model.eval()
    feed = Feed(windows, batch_size, device=device, transform=transform, tier="source", rank=0, world_size=1)
    with closing(feed):
        for batch in feed:
            with torch.no_grad():  # not around a yield: it would hold for the caller too
                chances = model(batch["image"])[0].float().sigmoid()[:, 0] * weight
            for chance in chances:
                z, y, x = corners[number]
                if z > top:
                    yield top, (total[: z - top] / weights[: z - top]).cpu()
                    _move_up(total, z - top)
                    _move_up(weights, z - top)
                    top = z
                box = (slice(None), slice(y, y + patch[1]), slice(x, x + patch[2]))
                total[box] += chance
                weights[box] += weight
                number += 1
    yield top, (total[: depth - top] / weights[: depth - top]).cpu()


def write_prediction(path: Path, volume: Path, slabs: Iterator[tuple[int, torch.Tensor]]) -> Path:
    """What `slide` gives, as a zarr array of bytes (255 is certain); it appears whole or not at all."""
    part = path.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    array = create_zarr(part, describe_volume(volume, "volume").space, "uint8")
    for start, slab in slabs:
        array[start : start + len(slab)].write((slab * 255).round().to(torch.uint8).numpy()).result()
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    return path


def blending_weight(patch: Size) -> torch.Tensor:
    """A Gaussian over a patch, 1 in the middle."""
    sides = []
    for side in patch:
        away = torch.arange(side) - (side - 1) / 2
        sides.append(torch.exp(-0.5 * (away / (side * _SIGMA)) ** 2))
    weight = sides[0][:, None, None] * sides[1][None, :, None] * sides[2][None, None, :]
    return (weight / weight.max()).clamp_min(_LEAST)


def _move_up(slab: torch.Tensor, by: int) -> None:
    """Forget the first slices: the others take their place, and zeros come after."""
    kept = slab[by:].clone()
    slab.zero_()
    slab[: len(kept)] = kept
