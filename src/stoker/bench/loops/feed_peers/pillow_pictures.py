"""Pictures in class folders decoded by Pillow: by torch's DataLoader, WebDataset or LitData.

One script for the three, which do the same with the pixels: decode to RGB, cut the largest square from the
middle and scale it to 224 x 224 (bilinear with anti-aliasing), 8 bits a channel. WebDataset and LitData keep
the files' own bytes in their shards.
"""

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

_SIDE = 224
# As many shards as any number of workers here divides.
_SHARDS = 8


def decode(file: Any) -> torch.Tensor:
    """A picture of [3, 224, 224]; cut and scaled by one call."""
    with Image.open(file) as image:
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        fitted = image.convert("RGB").resize(
            (_SIDE, _SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)


class Folders(Dataset[Any]):
    """The obvious dataset: a folder a class."""

    def __init__(self, data: Path) -> None:
        names = sorted(folder.name for folder in data.iterdir())
        self.files = [(str(path), label) for label, name in enumerate(names) for path in _list(data / name)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        return decode(path), label


def open_epochs(*, data: str, work: str, batch: int, way: str, workers: int) -> Callable[[], Iterable[Any]]:
    """One of the ways below, whose loader keeps its workers."""
    folders, kept = Folders(Path(data)), {"num_workers": workers, "persistent_workers": workers > 0}
    loader: Any
    if way == "webdataset":
        loader = _webdataset(folders, Path(work) / way, batch, kept)
    elif way == "litdata":
        loader = _litdata(folders, Path(work) / way, batch, kept)
    else:
        loader = DataLoader(folders, batch_size=batch, shuffle=True, **kept)  # type: ignore[arg-type]
    return lambda: loader


def _webdataset(folders: Folders, folder: Path, batch: int, kept: dict[str, Any]) -> Iterable[Any]:
    import webdataset

    if not folder.exists():
        folder.mkdir()
        for shard, numbers in enumerate(np.array_split(np.random.permutation(len(folders)), _SHARDS)):
            with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
                for number in numbers:
                    path, label = folders.files[number]
                    for kind, value in (("jpg", Path(path).read_bytes()), ("cls", str(label).encode())):
                        entry = tarfile.TarInfo(f"{number:06d}.{kind}")
                        entry.size = len(value)
                        tar.addfile(entry, io.BytesIO(value))
    tars = sorted(map(str, folder.glob("*.tar")))
    samples = webdataset.WebDataset(tars, shardshuffle=_SHARDS, empty_check=False).shuffle(1000)
    batches = samples.to_tuple("jpg", "cls").map_tuple(_decode_bytes, int).batched(batch, collation_fn=_stack)
    loader: Iterable[Any] = webdataset.WebLoader(batches, batch_size=None, **kept)
    return loader


def _litdata(folders: Folders, folder: Path, batch: int, kept: dict[str, Any]) -> Iterable[Any]:
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        os.environ[name] = tempfile.mkdtemp(dir=folder.parent)
    import litdata

    if not folder.exists():
        litdata.optimize(
            fn=partial(_sample, folders.files),
            inputs=list(range(len(folders))),
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=1,
        )

    class Decoded(litdata.StreamingDataset):  # type: ignore[misc]
        """Its own samples are the files' bytes."""

        def __getitem__(self, index: Any) -> Any:
            data, label = super().__getitem__(index)
            return _decode_bytes(data), label

    loader: Iterable[Any] = litdata.StreamingDataLoader(
        Decoded(str(folder), shuffle=True), batch_size=batch, **kept
    )
    return loader


def _decode_bytes(data: bytes) -> torch.Tensor:
    return decode(io.BytesIO(data))


def _stack(samples: list[tuple[torch.Tensor, int]]) -> Any:
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def _sample(files: list[tuple[str, int]], number: int) -> Any:
    path, label = files[number]
    return Path(path).read_bytes(), label


def _list(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
