"""JPEGs onto a GPU: the part `images` of `stoker bench feed --device cuda`."""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stoker.bench.children import say
from stoker.bench.feed_gpu import Runs, Turn, take_turns
from stoker.bench.feed_images import CLASSES, make_pictures
from stoker.bench.loops.feed_peers.turn import check
from stoker.errors import BenchFailed
from stoker.feed.decode import decode_batch, fit
from stoker.feed.feed import Feed
from stoker.feed.sources.images import ImageSource

_PICTURES, _BATCH, _SIZE = 4096, 256, (224, 224)
# One for each of the other cores.
_WORKERS = max(1, (os.cpu_count() or 2) - 1)
_GPU = torch.device("cuda")


class TorchvisionFolders(Dataset[Any]):
    """Class folders decoded on the CPU by torchvision, otherwise as with Pillow."""

    def __init__(self, files: Sequence[tuple[str, int]]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file

        path, label = self.files[index]
        return fit(decode_jpeg(read_file(path), mode=ImageReadMode.RGB), _SIZE), label


def measure_images_on_gpu(seconds: float) -> Runs:
    """Pictures a second onto the device, decoded there or before."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError) as error:
        raise BenchFailed(
            f"images: nvJPEG comes with torchvision, which is not to be had ({error})"
        ) from error
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        data = Path(folder)
        make_pictures(data, _PICTURES)
        from stoker.bench.loops.feed_peers.pillow_pictures import Folders  # the other parts do without Pillow

        files = [
            torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in data.glob("*/*")
        ]
        on_device = Feed(
            ImageSource(data, decode=False),
            batch_size=_BATCH,
            shuffle=True,
            tier="source",
            device=_GPU,
            transform=_decode_there,
        )
        by_cpu = Feed(
            ImageSource(data, size=_SIZE), batch_size=_BATCH, shuffle=True, tier="source", device=_GPU
        )

        def nvjpeg() -> Iterator[Any]:
            for at in range(0, len(files), _BATCH):
                yield decode_jpeg(files[at : at + _BATCH], mode=ImageReadMode.RGB, device=_GPU), None

        with closing(on_device), closing(by_cpu):
            turns: dict[str, Turn] = {
                "stoker": lambda: _time(lambda: on_device),
                "cpu": lambda: _time(lambda: by_cpu),
                "limit": lambda: _time(nvjpeg),
            }
            folders = Folders(data)
            turns["peer_dataloader_pillow"] = _peer_turn(folders)
            turns["peer_dataloader_torchvision"] = _peer_turn(TorchvisionFolders(folders.files))
            for kind, turn in turns.items():
                say(f"images: an epoch of {kind} that is not counted: {turn()['samples_s']:.0f} images/s")
            _check("stoker", on_device)
            _check("cpu", by_cpu)
            return take_turns("images_gpu", turns, seconds)


def _decode_there(batch: Any) -> Any:
    """What a user gives as `transform=`: the files of a batch decoded on the device."""
    files, labels = batch
    return decode_batch(files, _GPU, _SIZE), labels


def _peer_turn(dataset: Dataset[Any]) -> Turn:
    loader = DataLoader(
        dataset,
        batch_size=_BATCH,
        shuffle=True,
        num_workers=_WORKERS,
        persistent_workers=True,
        pin_memory=True,
    )
    return lambda: _time(lambda: ((images.to(_GPU, non_blocking=True), labels) for images, labels in loader))


def _time(open_epoch: Callable[[], Iterable[Any]]) -> dict[str, Any]:
    """An epoch, to the end of the device's work."""
    torch.cuda.synchronize()
    began, samples = time.perf_counter(), 0
    for images, _ in open_epoch():
        samples += len(images)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "samples": samples, "samples_s": samples / seconds}


def _check(kind: str, feed: Feed) -> None:
    """Every picture comes once, with its class."""
    try:
        samples = check(lambda: ((images.cpu(), labels.cpu()) for images, labels in feed), CLASSES)["samples"]
    except SystemExit as error:
        raise BenchFailed(f"images: {kind}: {error}") from error
    if samples != _PICTURES:
        raise BenchFailed(f"images: {kind}: {samples} samples came of {_PICTURES}")
