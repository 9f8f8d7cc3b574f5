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
from monai.transforms import Compose, RandomizableTransform, SpatialCrop, Transform


class Read(Transform):  # type: ignore[misc]
    """The volume and its labels beside where a patch lies; the same two objects for all patches."""

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """Only what is a Transform of MONAI's, and not random, is cached."""
        image, label = _load(item["data"])
        return {"corner": item["corner"], "image": image, "label": label}


class Crop(RandomizableTransform):  # type: ignore[misc]
    """One patch, cut by MONAI; taken for random, so that its result is not cached."""

    def __init__(self, size: list[int]) -> None:
        super().__init__()
        self._size = size

    def __call__(self, item: dict[str, Any]) -> Any:
        """The patch of the volume and that of its labels."""
        end = [low + side for low, side in zip(item["corner"], self._size, strict=True)]
        crop = SpatialCrop(roi_start=item["corner"], roi_end=end)
        return tuple(crop(item[name]).as_tensor() for name in ("image", "label"))


class Patch(Transform):  # type: ignore[misc]
    """The same, not random, and without the volume behind it: what is kept is the patch alone."""

    def __init__(self, size: list[int]) -> None:
        self._read, self._crop = Read(), Crop(size)

    def __call__(self, item: dict[str, Any]) -> Any:
        """The patch of the volume and that of its labels."""
        return tuple(part.clone() for part in self._crop(self._read(item)))


def open_epochs(
    *, data: str, work: str, batch: int, size: list[int], way: str, workers: int
) -> Callable[[], Any]:
    """MONAI's loader, keeping its workers."""
    corners = np.load(Path(data) / "corners.npy").tolist()
    items = [{"corner": corner, "data": data} for corner in corners]
    if way == "cache":
        steps = Compose([Read(), Crop(size)])
        dataset = CacheDataset(items, steps, progress=False, num_workers=1, copy_cache=False)
        if "image" not in dataset._cache[0]:
            raise SystemExit("monai: the volume was not cached")
    else:
        folder = Path(work) / "monai_patches"
        dataset = PersistentDataset(items, Patch(size), cache_dir=folder)
        image, label = dataset[0]
        least = image.nbytes + label.nbytes
        if not all(least <= path.stat().st_size < 2 * least for path in folder.glob("*.pt")):
            raise SystemExit("monai: patches were not kept as files")
    loader = DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


@cache
def _load(data: str) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("image.zarr", "label.zarr")
    image, label = (
        torch.from_numpy(zarr.open_array(str(Path(data) / name), mode="r")[:])[None] for name in names
    )
    return image, label
