"""MONAI's caches over a `.npy` file a sample: `persistent` keeps samples as files, `cache` in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, PersistentDataset
from monai.transforms import Transform


class Load(Transform):  # type: ignore[misc]
    """A sample's file. Only what is a Transform of MONAI's is cached."""

    def __call__(self, item: dict[str, Any]) -> Any:
        """The row and its label."""
        return torch.from_numpy(np.load(item["path"])), item["label"]


def open_epochs(*, data: str, work: str, batch: int, way: str, workers: int) -> Callable[[], Any]:
    """MONAI's loader, keeping its workers."""
    labels = np.load(Path(data) / "labels.npy")
    items = [
        {"path": str(Path(data) / "files" / f"{number:06d}.npy"), "label": int(label)}
        for number, label in enumerate(labels)
    ]
    if way == "cache":
        dataset = CacheDataset(items, Load(), progress=False, num_workers=1, copy_cache=False)
        if not isinstance(dataset._cache[0], tuple):
            raise SystemExit("monai: samples were not cached")
    else:
        folder = Path(work) / "monai"
        dataset = PersistentDataset(items, Load(), cache_dir=folder)
        row, _ = dataset[0]
        if not all(path.stat().st_size >= row.nbytes for path in folder.glob("*.pt")):
            raise SystemExit("monai: samples were not kept as files")
    loader = DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: loader
