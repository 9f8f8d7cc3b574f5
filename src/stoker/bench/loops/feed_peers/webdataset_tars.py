"""WebDataset over tar files, shuffled by shard and by a buffer, batches made in the workers."""

import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset

# As many as any number of workers here divides.
_SHARDS = 8


def open_epochs(*, data: str, work: str, batch: int, workers: int) -> Callable[[], Iterable[Any]]:
    """A loader that keeps its workers."""
    folder = Path(work) / "webdataset"
    if not folder.exists():
        _write(Path(data), folder)
    dataset = (
        webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=_SHARDS, empty_check=False)
        .shuffle(1000)
        .to_tuple("x", "label")
        .batched(batch, collation_fn=_collate)
    )
    loader = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


def _collate(samples: list[tuple[bytes, bytes]]) -> Any:
    rows = np.stack([np.frombuffer(row, np.uint8) for row, _ in samples])
    labels = np.frombuffer(b"".join(label for _, label in samples), np.int64).copy()
    return torch.from_numpy(rows), torch.from_numpy(labels)


def _write(data: Path, folder: Path) -> None:
    rows, labels = np.load(data / "rows.npy", mmap_mode="r"), np.load(data / "labels.npy")
    folder.mkdir()
    for shard, numbers in enumerate(np.array_split(np.arange(len(labels)), _SHARDS)):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for number in numbers:
                for kind, value in (("x", rows[number].tobytes()), ("label", labels[number].tobytes())):
                    entry = tarfile.TarInfo(f"{number:06d}.{kind}")
                    entry.size = len(value)
                    tar.addfile(entry, io.BytesIO(value))
