"""torch's DataLoader over a zarr volume and its labels, read by zarr-python: a patch a sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset[Any]):
    """The arrays are opened in the process that reads."""

    def __init__(self, data: Path, size: list[int]) -> None:
        self.data, self.size = data, size
        self.corners = np.load(data / "corners.npy").tolist()
        self.arrays: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.corners)

    def __getitem__(self, index: int) -> Any:
        if self.arrays is None:
            names = ("image.zarr", "label.zarr")
            self.arrays = [zarr.open_array(str(self.data / name), mode="r") for name in names]
        box = tuple(slice(low, low + side) for low, side in zip(self.corners[index], self.size, strict=True))
        image, label = (torch.from_numpy(array[box])[None] for array in self.arrays)
        return image, label


def open_epochs(*, data: str, batch: int, size: list[int], workers: int) -> Callable[[], DataLoader[Any]]:
    """A loader that keeps its workers."""
    loader: DataLoader[Any] = DataLoader(
        Patches(Path(data), size),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: loader
