"""MosaicML Streaming over shards in its own format on this disk, with its own shuffle."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader


def _load() -> Any:
    """Its package. The vision datasets in it are not used; their torchvision fails beside a CPU torch."""
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms.functional")
    made = {name: module_from_spec(ModuleSpec(name, None)) for name in names}
    made["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    made["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    sys.modules |= made
    streaming = import_module("streaming")
    for name in names:
        del sys.modules[name]
    return streaming


streaming = _load()


def open_epochs(*, data: str, work: str, batch: int, workers: int) -> Callable[[], Iterable[Any]]:
    """A loader that keeps its workers."""
    folder = Path(work) / "mosaic"
    if not folder.exists():
        _write(Path(data), folder)
    # Two processes that are not one job may not use the same folder: links to the same files.
    own = Path(tempfile.mkdtemp(dir=work)) / "mosaic"
    shutil.copytree(folder, own, copy_function=os.link)
    dataset = streaming.StreamingDataset(local=str(own), shuffle=True, batch_size=batch)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: _pairs(loader)


def _pairs(loader: DataLoader[Any]) -> Iterator[Any]:
    for batch in loader:
        yield batch["x"], batch["label"]


def _write(data: Path, folder: Path) -> None:
    rows, labels = np.load(data / "rows.npy", mmap_mode="r"), np.load(data / "labels.npy")
    columns = {"x": f"ndarray:uint8:{rows.shape[1]}", "label": "int"}
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=1 << 26) as writer:
        for row, label in zip(rows, labels, strict=True):
            writer.write({"x": np.ascontiguousarray(row), "label": int(label)})
