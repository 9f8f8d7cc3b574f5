"""The limit of the machine: the same patches copied from a volume and its labels in memory by numpy."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch


def open_epochs(*, data: str, batch: int, size: list[int], workers: int) -> Callable[[], Iterator[Any]]:
    """One copy a patch, straight into its place in the batch, by that many threads."""
    volumes = [np.load(Path(data) / name) for name in ("image.npy", "label.npy")]
    corners = np.load(Path(data) / "corners.npy")

    pool = ThreadPoolExecutor(workers)

    def gather(chosen: Any) -> Any:
        found = [np.empty((len(chosen), 1, *size), np.uint8) for _ in volumes]

        def copy(place: int) -> None:
            corner = corners[chosen[place]].tolist()
            box = tuple(slice(low, low + side) for low, side in zip(corner, size, strict=True))
            for out, volume in zip(found, volumes, strict=True):
                out[place, 0] = volume[box]

        list(pool.map(copy, range(len(chosen))))
        return tuple(map(torch.from_numpy, found))

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(len(corners))
        return (gather(order[at : at + batch]) for at in range(0, len(order), batch))

    return epoch
