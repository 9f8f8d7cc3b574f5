"""Stoker's own ways of reading, as `loops/feed_peers/turn.py` measures them beside the peers'."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stoker.bench.loops.feed_peers.plain import Files
from stoker.feed import Feed
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.images import ImageSource
from stoker.feed.sources.npy import NpySource
from stoker.feed.sources.object_source import ObjectSource
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.tiers.disk import DiskTier

Epoch = Callable[[], Iterable[Any]]
# Pixels of a side, for what peers do the same.
_PICTURE = (224, 224)


def open_epochs(*, way: str, batch: int, **plan: Any) -> Epoch:
    """One of the functions below; what is kept on disk is full after the first epoch."""
    ways: dict[str, Callable[..., Epoch]] = {
        "feed": feed,
        "tier": tier,
        "ram": ram,
        "npy": npy,
        "torch": torch_dataset,
        "images": images,
        "images_ram": images_ram,
        "volume": volume,
        "s3": s3,
        "s3_caching": s3_caching,
        "s3_second": s3_second,
    }
    return ways[way](batch=batch, **plan)


def feed(*, data: str, work: str, batch: int) -> Epoch:
    """As a user would: a feed over the source, with a cache on disk under it."""
    loader = _feed(rows(data), batch, cache=Path(work) / "feed")
    return lambda: _pairs(loader)


def tier(*, data: str, work: str, batch: int) -> Epoch:
    """The disk tier alone, asked for one batch after the other."""
    cache = DiskTier(rows(data), Path(work) / "tier", cap_bytes=1 << 40)
    cache.fill()

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(len(cache))
        return _pairs(cache.read(order[at : at + batch]) for at in range(0, len(order), batch))

    return epoch


def ram(*, data: str, batch: int) -> Epoch:
    """A feed that holds the samples in memory."""
    loader = Feed(rows(data), batch_size=batch, shuffle=True, tier="ram", device="cpu")
    return lambda: _pairs(loader)


def npy(*, data: str, batch: int) -> Epoch:
    """A feed over the source, nothing kept."""
    loader = _feed(rows(data), batch, cache=None)
    return lambda: _pairs(loader)


def torch_dataset(*, data: str, batch: int, workers: int | None = None) -> Epoch:
    """A feed over a dataset of somebody's own, nothing kept; as many workers as it takes unless said."""
    dataset = Files(Path(data))
    loader = Feed(dataset, batch_size=batch, shuffle=True, tier="source", workers=workers, device="cpu")
    return lambda: loader


def images(*, data: str, batch: int) -> Epoch:
    """A feed over class folders, nothing kept."""
    loader = _feed(ImageSource(data, size=_PICTURE), batch, cache=None)
    return lambda: loader


def images_ram(*, data: str, batch: int) -> Epoch:
    """A feed that holds their pixels in memory."""
    source = ImageSource(data, size=_PICTURE)
    loader = Feed(source, batch_size=batch, shuffle=True, tier="ram", device="cpu")
    return lambda: loader


def volume(*, data: str, batch: int, patches: int, cache_bytes: int, work: str | None = None) -> Epoch:
    """A feed over patches of a volume and its labels; `work`: with a cache on disk under it."""
    cache = None if work is None else Path(work) / "volume"
    loader = _feed(volume_source(data, patches, cache_bytes=cache_bytes), batch, cache=cache)
    return lambda: ((both["image"], both["label"]) for both in loader)


def volume_source(data: str, patches: int, **options: Any) -> VolumeSource:
    """The patches that every loader reads."""
    image, label = f"{data}/image.zarr", f"{data}/label.zarr"
    return VolumeSource(image, labels=label, samples_per_epoch=patches, foreground=0, **options)


def s3(*, batch: int, url: str, options: Mapping[str, Any]) -> Epoch:
    """A feed over objects, nothing kept."""
    loader = _feed(ObjectSource(url, options=options), batch, cache=None)
    return lambda: _unlabelled(loader)


def s3_caching(*, batch: int, url: str, options: Mapping[str, Any], work: str) -> Epoch:
    """The first epoch over objects: every one is read from the store and written to a cache on disk."""
    source = ObjectSource(url, options=options)

    def epoch() -> Iterator[Any]:
        folder = Path(work) / "s3_first"
        shutil.rmtree(folder, ignore_errors=True)
        return _unlabelled(_feed(source, batch, cache=folder))

    return epoch


def s3_second(*, batch: int, url: str, options: Mapping[str, Any], work: str) -> Epoch:
    """Every later epoch: from the cache on disk that the first has filled."""
    source = Closable(url, options=options)
    loader = _feed(source, batch, cache=Path(tempfile.mkdtemp(dir=work)))
    for _ in loader:
        pass
    source.gone = True
    return lambda: _unlabelled(loader)


class Closable(ObjectSource):
    """A store that may close."""

    gone = False

    def read(self, indices: Indices) -> Any:
        """The bytes of these, until it has closed."""
        if self.gone:
            raise RuntimeError(f"{len(indices)} objects were to come from the cache, and were not there")
        return super().read(indices)


def key_of(number: int) -> str:
    """What an object is called."""
    return f"{number:06d}"


def rows(data: str) -> NpySource:
    """The set that every loader reads."""
    return NpySource(data, "rows.npy", metadata="labels.npy")


def _feed(source: Source, batch: int, *, cache: Path | None) -> Feed:
    return Feed(source, batch_size=batch, shuffle=True, tier="source", cache=cache, device="cpu")


def _unlabelled(batches: Iterable[Any]) -> Iterator[Any]:
    """Objects have no labels."""
    for batch in batches:
        yield batch, None


def _pairs(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch["data"], batch["labels"]
