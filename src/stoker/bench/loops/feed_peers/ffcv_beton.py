"""FFCV over its own file, in random order, from the page cache."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, NDArrayField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.ndarray import NDArrayDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter


class _Rows:
    """What its writer takes: samples by number."""

    def __init__(self, data: Path) -> None:
        self.rows = np.load(data / "rows.npy", mmap_mode="r")
        self.labels = np.load(data / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return np.array(self.rows[index]), int(self.labels[index])


def open_epochs(*, data: str, work: str, batch: int, workers: int) -> Callable[[], Iterable[Any]]:
    """Its loader, with that many threads."""
    path, rows = Path(work) / "ffcv.beton", _Rows(Path(data))
    if not path.exists():
        fields = {"x": NDArrayField(np.dtype("uint8"), (rows.rows.shape[1],)), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(rows)
    loader = Loader(
        str(path),
        batch_size=batch,
        num_workers=workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"x": [NDArrayDecoder(), ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )
    return lambda: loader
