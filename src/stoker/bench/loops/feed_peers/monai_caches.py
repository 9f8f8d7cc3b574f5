"""MONAI's caches over a `.npy` file a sample: `persistent` keeps samples as files, `cache` in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, PersistentDataset


def open_epochs(*, data: str, work: str, batch: int, way: str, workers: int) -> Callable[[], Any]:
    """MONAI's loader, keeping its workers."""
    labels = np.load(Path(data) / "labels.npy")
    items = [
        {"path": str(Path(data) / "files" / f"{number:06d}.npy"), "label": int(label)}
        for number, label in enumerate(labels)
    ]
    if way == "cache":
        dataset = CacheDataset(items, _load, progress=False, num_workers=1, copy_cache=False)
    else:
        dataset = PersistentDataset(items, _load, cache_dir=Path(work) / "monai")
    loader = DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: loader


def _load(item: dict[str, Any]) -> Any:
    return torch.from_numpy(np.load(item["path"])), item["label"]
