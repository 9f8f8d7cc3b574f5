"""Images in class folders, on disk or in an object store: labels by folder, decoded by the batch.

    train = ImageSource("s3://bucket/imagenet/train", classes=100, seed=0, size=(224, 224))
    images, labels = train.read(np.arange(256))          # uint8 [256, 3, 224, 224], int64 [256]

What decodes them, and to what, is told in `stoker.feed.decode`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from stoker.errors import SourceBroken, UsageError
from stoker.feed.arguments import checked_count, checked_size
from stoker.feed.decode import Data, Pixels, Size, decode, decoder_name
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices, checked
from stoker.feed.sources.class_folders import Globs, gather_classes
from stoker.feed.sources.objects import Store
from stoker.feed.sources.stored import StoredSource
from stoker.feed.tiers.batch_memory import fresh_batch

SUFFIXES = (".jpg", ".jpeg", ".png")
# Images that a thread decodes at one go, and how many goes a batch is at least worth: to hand one over takes
# some 50 us beside the 1.3 ms of its decoding.
_AT_ONCE, _JOBS = 4, 32


class ImageSource(StoredSource):
    """Samples are (image, label): JPEG and PNG files in one folder a class, at any depth below it.

    `classes` takes some of them: a number of classes by the seed, or their names; labels count the sorted
    names of those taken. `size=(height, width)`, or one number for both, scales each image to cover it and
    cuts its middle, and is needed where images differ. `decode=False` hands out the files' bytes as a list,
    for a cache of compressed images; `stoker.feed.decode.decode_batch` makes tensors of them, on a GPU too.
    `keep` names a folder into which everything read from a remote store is also written; `in_flight` is how
    many requests are made of it at once (see `Store`).

    A file that is no whole image raises `SourceBroken` with its name, never a blank sample; `find_broken`
    lists them all, and `exclude` leaves them out.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        classes: int | Sequence[str] | None = None,
        seed: int = 0,
        size: int | Size | None = None,
        decode: bool = True,
        exclude: Sequence[str] = (),
        keep: Path | str | None = None,
        threads: int | None = None,
        options: Mapping[str, Any] | None = None,
        in_flight: int | None = None,
    ) -> None:
        self.size = None if size is None else checked_size(size)
        if threads is not None:
            threads = checked_count("threads", threads, "threads", least=0)
        store = Store(url, options=options, in_flight=in_flight)
        self.classes, listing = gather_classes(store, classes, seed)
        excluded = Globs(exclude=exclude)
        taken = [
            number
            for number, key in enumerate(listing.keys)
            if key.lower().endswith(SUFFIXES) and key.count("/") and excluded.match(key)
        ]
        self.ignored = len(listing) - len(taken)
        if not taken:
            raise UsageError(
                f"no images in class folders under {store.url}: files {', '.join(SUFFIXES)} are looked for "
                "in one folder for each class; give the folder above those"
            )
        super().__init__(store, listing.take(taken), keep)
        self.decodes = decode
        self._fingerprint = self._listing.fingerprint()
        self._labels = np.searchsorted(
            np.array(self.classes), np.array([key.partition("/")[0] for key in self._keys])
        ).astype(np.int64)
        self._pool = PerProcess(partial(_make_pool, threads))

    @property
    def labels(self) -> torch.Tensor:
        """The label of every sample."""
        return torch.from_numpy(self._labels.copy())

    def read(self, indices: Indices) -> Any:
        """The images of these samples and their labels."""
        chosen = checked(indices, len(self))
        labels = torch.from_numpy(self._labels[chosen])
        keys = [self._keys[number] for number in chosen.tolist()]
        files = self._store.fetch(keys, self._listing.sizes[chosen].tolist())
        if not self.decodes:
            return [bytes(data) for data in files], labels
        return self._read_images(keys, files), labels

    def find_broken(self) -> dict[str, str]:
        """Read and decode every image: the names of those that are not whole, and what is wrong with each."""
        broken: dict[str, str] = {}
        # A few at a time: this may be terabytes.
        for start in range(0, len(self), 256):
            keys = [self._keys[number] for number in range(start, min(start + 256, len(self)))]
            for key, data in zip(keys, self._store.fetch(keys), strict=True):
                try:
                    decode(data)
                except ValueError as error:
                    broken[key] = str(error)
        return broken

    def fingerprint(self) -> str:
        """Of the files' names, sizes and tags or times, and of what is made of them."""
        how = f"{self.size} {decoder_name()}" if self.decodes else "bytes"
        return blake2b(
            f"{self._fingerprint} {how} {self.classes}".encode("utf-8", "surrogateescape"), digest_size=16
        ).hexdigest()

    def _read_images(self, keys: Sequence[str], fetched: Iterator[Data]) -> torch.Tensor:
        """The batch; while some images are decoded into their places, others are on their way."""
        batch = fresh_batch((len(keys), 3, *(self.size or (0, 0))), torch.uint8)
        pool = self._pool.get()
        jobs: list[Future[None]] = []
        files = enumerate(zip(keys, fetched, strict=True))
        some = max(1, min(_AT_ONCE, len(keys) // _JOBS))
        while part := list(islice(files, some)):
            if part[0][0] == 0 and self.size is None:
                batch = fresh_batch((len(keys), *self._decode(*part[0][1]).shape), torch.uint8)
            place = partial(self._place, batch.numpy(), part, keys[0])
            if pool is None:
                place()
            else:
                jobs.append(pool.submit(place))
        for job in jobs:
            job.result()
        return batch

    def _place(self, batch: Pixels, files: Sequence[tuple[int, tuple[str, Data]]], first: str) -> None:
        """Decode these files, each into its row of the batch."""
        for row, (key, data) in files:
            image = self._decode(key, data)
            if image.shape != batch.shape[1:]:
                (height, width), (tall, wide) = batch.shape[2:], image.shape[1:]
                raise UsageError(
                    f"images differ in size: {first} is {height}x{width}, {key} is {tall}x{wide}; give "
                    "size=(height, width), or decode=False for their bytes"
                )
            # Not by torch, whose copy starts a team of threads in every thread that it is called from.
            np.copyto(batch[row], image.numpy())

    def _decode(self, key: str, data: Data) -> torch.Tensor:
        try:
            return decode(data, self.size)
        except ValueError as error:
            raise SourceBroken(
                f"{self.url}/{key} ({len(data)} bytes) is {error}; mend it, or leave it out: "
                f"exclude=[{key!r}]"
            ) from error


def _make_pool(threads: int | None) -> ThreadPoolExecutor | None:
    """Threads that decode (libjpeg-turbo lets go of the GIL); none where one core is all there is to use."""
    if threads is None:
        # The cores of a DataLoader's workers are already shared out among them.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = 1 if get_worker_info() is not None else min(16, cores)
    return ThreadPoolExecutor(threads, thread_name_prefix="stoker-decode") if threads > 1 else None
