"""torch's DataLoader over `.npy` files: one a sample, or one large one that is memory-mapped.

`files` and `memmap` read sample by sample and leave batches to default_collate; `gather` reads a batch from
the map by one index, which is as far as a DataLoader can be tuned for such data. `alone` asks the dataset of
`files` for one sample after the other, in this process, and makes no batches: its own rate, without a loader.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Files(Dataset[Any]):
    """A file a sample."""

    def __init__(self, data: Path) -> None:
        self.labels = np.load(data / "labels.npy")
        self.names = [str(data / "files" / f"{number:06d}.npy") for number in range(len(self.labels))]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.load(self.names[index])), self.labels[index]


class Map(Dataset[Any]):
    """One file, mapped; an index may be a list of them."""

    def __init__(self, data: Path) -> None:
        self.labels = np.load(data / "labels.npy")
        self.rows = np.load(data / "rows.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return torch.from_numpy(self.rows[index]), torch.from_numpy(self.labels[index])
        return torch.from_numpy(self.rows[index]), self.labels[index]


def open_epochs(*, data: str, batch: int, way: str, workers: int) -> Callable[[], Iterable[Any]]:
    """A loader that keeps its workers."""
    dataset: Any = Map(Path(data)) if way in ("memmap", "gather") else Files(Path(data))
    if way == "alone":
        return lambda: _ask(dataset, batch)
    kept: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader: DataLoader[Any]
    if way == "gather":
        batches = BatchSampler(RandomSampler(dataset), batch, drop_last=False)
        loader = DataLoader(dataset, batch_size=None, sampler=batches, **kept)
    else:
        loader = DataLoader(dataset, batch_size=batch, shuffle=True, **kept)
    return lambda: loader


def _ask(dataset: Files, batch: int) -> Iterator[Any]:
    order = torch.randperm(len(dataset)).tolist()
    for at in range(0, len(order), batch):
        samples = [dataset[number] for number in order[at : at + batch]]
        yield [row for row, _ in samples], None
