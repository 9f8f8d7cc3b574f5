"""The four systems as `stoker bench workloads` runs them: sizes, data, the note's script, Stoker's feed.

A system is large on a GPU. On a CPU it is as small as it can be, to see that it works.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from stoker.bench.workloads_step import How
from stoker.errors import BenchFailed
from stoker.feed import Feed
from stoker.feed.transforms import VolumeTransform
from stoker.train.config import OptimizerConfig, TrainConfig
from stoker.train.task import Task, World
from stoker.workloads.heimdall.config import HeimdallConfig
from stoker.workloads.heimdall.measurements import MadeRadio
from stoker.workloads.heimdall.schema import fill_database
from stoker.workloads.heimdall.task import HeimdallTask
from stoker.workloads.imagenet.config import ImagenetConfig
from stoker.workloads.imagenet.folders import TRAIN, make_folders
from stoker.workloads.imagenet.task import ImagenetTask
from stoker.workloads.sar.config import SarConfig
from stoker.workloads.sar.shards import make_shards
from stoker.workloads.sar.task import SarTask
from stoker.workloads.vesuvius.config import VesuviusConfig
from stoker.workloads.vesuvius.residence import open_feed, settle
from stoker.workloads.vesuvius.scrolls import MadeScrolls, Scroll, create_zarr, draw_scroll
from stoker.workloads.vesuvius.source import ScrollSource
from stoker.workloads.vesuvius.task import VesuviusTask

NOTES = Path(__file__).parent / "loops" / "notes"
_ADAMW = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=1e-4)
# Of the device, left to the step when volumes are laid there.
_VOLUME_RESERVE = 40 << 30
_STORE_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Note:
    """The note's script, with its words; batches come in bursts of `cycle`, one of each worker."""

    script: Path
    words: tuple[str, ...]
    cycle: int = 1


@dataclass(frozen=True, kw_only=True)
class Way:
    """A task with its feed, and how its step is made."""

    task: Task[Any]
    feed: Feed
    how: How


class System(ABC):
    """One system on one device, its data in `folder`."""

    name: ClassVar[str]
    # What is measured without the real thing, in words.
    stands_for: str
    # Added to each sample of the note's way, and where the figure comes from.
    delay_ms: ClassVar[float]
    delay_from: ClassVar[str]
    # The note's batch, and that of Stoker's fastest way; large, and small.
    batches: ClassVar[tuple[tuple[int, int], tuple[int, int]]]
    # How the note made its step on a GPU, and how Stoker makes it.
    noted: ClassVar[How] = How()
    faster: ClassVar[How] = How(
        precision="bf16", tf32=True, channels_last=True, cudnn_benchmark=True, compile=True
    )

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device = folder, device
        self.large = device.type == "cuda"
        self.batch, self.fast_batch = self.batches[0 if self.large else 1]
        self._open = lru_cache(self._open_feed)  # where both batches are the same, so is the feed

    @abstractmethod
    def make(self) -> None:
        """Make the data that is not there yet."""

    @abstractmethod
    def script(self, *, delayed: bool) -> "contextlib.AbstractContextManager[Note]":
        """The note's way, with the delay or without."""

    @abstractmethod
    def task(self, batch: int) -> Task[Any]:
        """The workload's task at that batch size."""

    def fed(self) -> Way:
        """The note's step and batch, on Stoker's feed."""
        return Way(task=self.task(self.batch), feed=self._open(self.batch), how=self._how(self.noted))

    def fast(self) -> Way:
        """Stoker's step and batch too."""
        return Way(
            task=self.task(self.fast_batch), feed=self._open(self.fast_batch), how=self._how(self.faster)
        )

    def describe(self) -> dict[str, Any]:
        """What stands in the result beside the figures."""
        return {
            "stands_for": self.stands_for,
            "delay_ms": self.delay_ms,
            "delay_from": self.delay_from,
            "batch": self.batch,
            "fast_batch": self.fast_batch,
        }

    def _open_feed(self, batch: int) -> Feed:
        return self.task(batch).open_feeds(World(), self.device).train

    def _how(self, how: How) -> How:
        # A CPU's step is not compiled and stays in float32: nothing is claimed of it.
        return how if self.large else How()

    def _note(self, *words: object, cycle: int = 1) -> Note:
        told = (*words, "--device", self.device.type, "--batch", self.batch, "--epochs", 1_000_000)
        return Note(script=NOTES / f"{self.name}.py", words=tuple(map(str, told)), cycle=cycle)


class Sar(System):
    """Notes 000 and 001."""

    name = "sar"
    stands_for = "made patches in .npy files of the real set's layout, in the page cache"
    delay_ms = 2.5
    delay_from = "note 000: 80 ms for a batch of 32 from its disk"
    batches = ((32, 32), (8, 8))

    def make(self) -> None:
        """Shards of patches."""
        samples, files, side = (8192, 44, 256) if self.large else (256, 4, 32)
        make_shards(self.folder, samples=samples, files=files, side=side)

    @contextlib.contextmanager
    def script(self, *, delayed: bool) -> Iterator[Note]:
        """No workers: what a sample waits for, the loop waits for."""
        delay = self.delay_ms if delayed else 0.0
        yield self._note("--data", self.folder, "--base", self._base, "--disk-ms", delay)

    def task(self, batch: int) -> SarTask:
        """The residual autoencoder."""
        train = TrainConfig(batch_size=batch, optimizer=_ADAMW)
        return SarTask(SarConfig(data=str(self.folder), base=self._base, train_share=0.99, train=train))

    @property
    def _base(self) -> int:
        return 64 if self.large else 8


class Imagenet(System):
    """Note 002."""

    name = "imagenet"
    stands_for = (
        "S3 behind a mount: an HTTP store on this machine, late by a sleep; Stoker reads a local copy, as "
        "after `stoker stage`, decodes it once and keeps the pixels"
    )
    delay_ms = 60.0
    delay_from = "note 002: 8 workers at 0.43 batches of 256 a second are 73 ms a photograph, less decoding"
    batches = ((256, 256), (16, 16))
    noted = How(precision="fp16", tf32=True, channels_last=True)

    def make(self) -> None:
        """Class folders; each photograph stands there several times, under other names."""
        classes, distinct, copies, scale = (100, 10, 12, 1.0) if self.large else (4, 12, 2, 0.2)
        if (self.folder / ".made").exists():
            return
        names = make_folders(self.folder, classes=classes, train_images=distinct, valid_images=1, scale=scale)
        for name in names:
            for path in sorted((self.folder / TRAIN / name).glob("*.JPEG"))[:distinct]:
                for copy in range(1, copies):
                    os.link(path, path.with_name(f"{path.stem}_{copy}.JPEG"))
        (self.folder / ".made").touch()

    @contextlib.contextmanager
    def script(self, *, delayed: bool) -> Iterator[Note]:
        """From the store, or from the folder itself."""
        workers = 8 if self.large else 1
        words = ("--data", self.folder, "--size", self._size, "--workers", workers)
        if not delayed:
            yield self._note(*words, cycle=workers)
            return
        with serving(self.folder / TRAIN, self.delay_ms) as address:
            yield self._note(*words, "--store", address, cycle=workers)

    def task(self, batch: int) -> ImagenetTask:
        """ResNet-50."""
        optimizer = OptimizerConfig(name="sgd", lr=0.5, weight_decay=5e-5, nesterov=True)
        train = TrainConfig(batch_size=batch, channels_last=self.large, optimizer=optimizer)
        pixels = 256 if self.large else 40
        return ImagenetTask(
            ImagenetConfig(
                data=str(self.folder), classes=None, pixels=pixels, image_size=self._size, train=train
            )
        )

    @property
    def _size(self) -> int:
        return 224 if self.large else 32


class Vesuvius(System):
    """Note 003."""

    name = "vesuvius"
    delay_ms = 0.0
    delay_from = "none is added: what the note's way takes is unpacking"
    batches = ((1, 4), (1, 2))

    def __init__(self, folder: Path, device: torch.device) -> None:
        super().__init__(folder, device)
        shape = " x ".join(map(str, self._made.shape))
        kind = "zarr" if self._in_zarr else "a plain .npy (for want of tensorstore)"
        self.stands_for = (
            f"a made scroll of {shape} voxels, in a compressed .npz for the note's way, in {kind} for Stoker"
        )

    def make(self) -> None:
        """The same voxels in both forms."""
        packed = self._packed / "scroll.npz"
        if packed.exists():
            return
        slices = list(draw_scroll(self._made, 0))
        volume, labels = (np.stack([pair[at] for pair in slices]) for at in range(2))
        for path, array in ((self._scroll.volume, volume), (self._scroll.labels, labels)):
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._in_zarr:
                create_zarr(path, array.shape, "uint8").write(array).result()
            else:
                np.save(path, array)
        self._packed.mkdir(parents=True, exist_ok=True)
        draft = packed.with_name("draft.zip")
        with draft.open("wb") as file:
            np.savez_compressed(file, volume=volume, labels=labels)
        draft.rename(packed)

    @contextlib.contextmanager
    def script(self, *, delayed: bool) -> Iterator[Note]:
        """One worker that unpacks."""
        yield self._note("--data", self._packed, "--patch", *self._patch, "--widths", *self._widths)

    def task(self, batch: int) -> VesuviusTask:
        """The U-Net."""
        optimizer = OptimizerConfig(name="adamw", lr=2e-3, weight_decay=1e-4)
        train = TrainConfig(batch_size=batch, optimizer=optimizer)
        return VesuviusTask(
            VesuviusConfig(patch=self._patch, widths=self._widths, train_batch_size=batch, train=train)
        )

    def _open_feed(self, batch: int) -> Feed:
        config = self.task(batch).config
        scrolls = [self._scroll]
        source = ScrollSource.at_random(
            scrolls,
            patch=self._patch,
            samples=4000 if self.large else 64,
            foreground=config.foreground,
            seed=0,
        )
        transform = VolumeTransform(flip=config.flip, mean=config.mean, std=config.std, field="image")
        residence = settle(scrolls, "auto", _VOLUME_RESERVE if self.large else None, self.device)
        return open_feed(
            source, residence, transform, world=World(), device=self.device, batch_size=batch, shuffle=True
        )

    @property
    def _in_zarr(self) -> bool:
        return importlib.util.find_spec("tensorstore") is not None

    @property
    def _scroll(self) -> Scroll:
        ends = "zarr" if self._in_zarr else "npy"
        paths = [self.folder / kind / f"scroll.{ends}" for kind in ("volumes", "labels")]
        return Scroll(name="scroll", volume=paths[0], labels=paths[1])

    @property
    def _packed(self) -> Path:
        return self.folder / "packed"

    @property
    def _made(self) -> MadeScrolls:
        return MadeScrolls(volumes=1, shape=(320, 512, 512) if self.large else (128, 256, 256))

    @property
    def _patch(self) -> tuple[int, int, int]:
        return (72, 136, 136) if self.large else (16, 16, 16)

    @property
    def _widths(self) -> tuple[int, ...]:
        return (32, 64, 128, 256) if self.large else (4, 8)


class Heimdall(System):
    """Note 004."""

    name = "heimdall"
    stands_for = "PostgreSQL over a network: SQLite on this machine, late by a sleep a query"
    delay_ms = 1.6
    delay_from = "note 004: 200 to 500 ms for a batch of 32 to 128; the least of it, 200 ms for 128"
    batches = ((128, 2048), (16, 32))

    def make(self) -> None:
        """A database."""
        samples, values = (40_960, 128) if self.large else (640, 32)
        fill_database(f"sqlite:///{self._file}", MadeRadio(samples=samples, iq_samples=values))

    @contextlib.contextmanager
    def script(self, *, delayed: bool) -> Iterator[Note]:
        """No workers: the session cannot be pickled."""
        width, layers, heads = self._model
        delay = self.delay_ms if delayed else 0.0
        shape = ("--width", width, "--layers", layers, "--heads", heads)
        yield self._note("--data", self._file, "--trip-ms", delay, *shape)

    def task(self, batch: int) -> HeimdallTask:
        """The locator, made large enough that its step is one."""
        width, layers, heads = self._model
        train = TrainConfig(batch_size=batch, optimizer=_ADAMW)
        return HeimdallTask(
            HeimdallConfig(
                database=f"sqlite:///{self._file}", width=width, layers=layers, heads=heads, train=train
            )
        )

    @property
    def _file(self) -> Path:
        return self.folder / "radio.db"

    @property
    def _model(self) -> tuple[int, int, int]:
        return (512, 8, 8) if self.large else (32, 2, 2)


SYSTEMS: dict[str, type[System]] = {one.name: one for one in (Sar, Imagenet, Vesuvius, Heimdall)}


@contextlib.contextmanager
def serving(folder: Path, delay_ms: float) -> Iterator[str]:
    """A store of these files; its address."""
    store = subprocess.Popen(
        [sys.executable, str(NOTES / "store.py"), str(folder), str(delay_ms)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert store.stdin is not None and store.stdout is not None
    try:
        with ThreadPoolExecutor(1) as waiting:
            port = waiting.submit(store.stdout.readline).result(_STORE_PATIENCE_S).strip()
        if not port:
            raise BenchFailed(f"the store of {folder} ended with code {store.wait()} before it served")
        yield f"127.0.0.1:{port}"
    finally:
        store.kill()
        store.wait()
        store.stdin.close()
        store.stdout.close()
