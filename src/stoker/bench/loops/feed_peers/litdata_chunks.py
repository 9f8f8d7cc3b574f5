"""LitData over chunks in its own format on this disk, with its own shuffle and loader."""

import os
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch


def open_epochs(*, data: str, work: str, batch: int, workers: int) -> Callable[[], Iterable[Any]]:
    """A loader that keeps its workers."""
    folder = Path(work) / "litdata"
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        os.environ[name] = tempfile.mkdtemp(
            dir=work
        )  # which it would leave in the folder for temporary files
    if not folder.exists():
        count = len(np.load(Path(data) / "labels.npy"))
        litdata.optimize(
            fn=partial(_sample, data),
            inputs=list(range(count)),
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=1,
        )
    dataset = litdata.StreamingDataset(str(folder), shuffle=True)
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


def _sample(data: str, number: int) -> Any:
    rows = np.load(Path(data) / "rows.npy", mmap_mode="r")
    return torch.from_numpy(np.array(rows[number])), number
