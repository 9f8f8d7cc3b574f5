"""MONAI over patches of a volume: `cache` holds the volume in memory, `persistent` a file a patch.

`cache` is a CacheDataset whose cached part is the whole volume and its labels, read once, and whose part at
every access is MONAI's own crop. `persistent` is a PersistentDataset that keeps the cropped patches.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from monai.data import CacheDataset, DataLoader, PersistentDataset
from monai.transforms import Compose, RandomizableTransform, SpatialCrop


class Crop(RandomizableTransform):  # type: ignore[misc]
    """One patch, cut by MONAI; taken for random, so that its result is not cached."""

    def __init__(self, size: list[int]) -> None:
        super().__init__()
        self._size = size

    def __call__(self, item: dict[str, Any]) -> Any:
        """The patch of the volume and that of its labels."""
        end = [low + side for low, side in zip(item["corner"], self._size, strict=True)]
        crop = SpatialCrop(roi_start=item["corner"], roi_end=end)
        return tuple(crop(values).as_tensor() for values in _load(item["data"]))


def open_epochs(
    *, data: str, work: str, batch: int, size: list[int], way: str, workers: int
) -> Callable[[], Any]:
    """MONAI's loader, keeping its workers."""
    corners = np.load(Path(data) / "corners.npy").tolist()
    items = [{"corner": corner, "data": data} for corner in corners]
    crop = Crop(size)
    if way == "cache":
        dataset = CacheDataset(items, Compose([_read, crop]), progress=False, num_workers=1, copy_cache=False)
    else:
        dataset = PersistentDataset(items, crop.__call__, cache_dir=Path(work) / "monai_patches")
    loader = DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


def _read(item: dict[str, Any]) -> dict[str, Any]:
    """What is cached: where the patch lies; the volume is the same object for all of them."""
    _load(item["data"])
    return item


@cache
def _load(data: str) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("image.zarr", "label.zarr")
    image, label = (
        torch.from_numpy(zarr.open_array(str(Path(data) / name), mode="r")[:])[None] for name in names
    )
    return image, label
