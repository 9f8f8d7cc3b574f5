"""A DataLoader's samples in a tier, handed out in the order of its own sampler.

`Feed` has an order of its own; here it is told, batch by batch, which samples come next. Where that cannot
be, `why` says so, and the loader is best left as it is.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from stoker.errors import NotPackable, SourceBroken
from stoker.feed.dataset_state import plain_attributes, state_digest
from stoker.feed.generators import kept_generators, tell_states
from stoker.feed.holding import Holding
from stoker.feed.layout import Layout
from stoker.feed.looks import Look, Looking, look_elsewhere
from stoker.feed.order import Shard
from stoker.feed.prefetch import Batches, Inline, Prefetch, Workers
from stoker.feed.randomness import find_randomness
from stoker.feed.ranks import find_ranks
from stoker.feed.sample_digest import digest, walk
from stoker.feed.sample_form import SampleForm
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.torch import TorchSource
from stoker.feed.tiers.disk import DiskTier

Collate = Callable[[list[Any]], Any]
TIERS = ("auto", "vram", "window", "ram", "disk")
# Put into one batch, to see whether samples are alike.
_TOGETHER = 16
# Read again when an epoch begins, to see whether the dataset has changed.
_AGAIN = 4


class HeldLoader:
    """The samples of one loader's dataset; `tier` is the highest to use. NotPackable where none holds them.

    `number` tells datasets of one process apart that look alike. They are read as the loader would read them:
    in this process, or in as many workers as it has, started as it starts them; `lives_on`: by the script
    they live on from epoch to epoch.
    """

    def __init__(
        self, loader: DataLoader[Any], tier: str, *, cache: Path, number: int, lives_on: bool
    ) -> None:
        check(loader)
        self._workers = loader.num_workers
        self._options = _options_of(loader)
        self._collate = None if loader.collate_fn is default_collate else loader.collate_fn
        self._source = TorchSource(loader.dataset)
        # Workers that live on never see what the script changes in its dataset.
        self._can_change = not (loader.num_workers and lives_on)
        look = self._look()
        if look.layout is None:
            raise NotPackable(look.unheld)
        self._form = look.form
        if look.form is not None:
            if _device_for(tier).type != "cpu":
                raise NotPackable("its own collate_fn is for samples in the host's memory: take ram or disk")
            self._source = TorchSource(loader.dataset, look.form.stack)
        unique = state_digest(loader.dataset) if tier == "disk" else str(number)
        # Nothing more is read for it here: the samples may be read elsewhere alone.
        told = f"{look.fingerprint} {unique}"
        self._source.know(fingerprint=told, kept_as=told)
        self._holding = Holding(
            self._source,
            prefetch=partial(self._prefetch, loader.num_workers * (loader.prefetch_factor or 0)),
            disk=partial(_open_disk, cache) if tier == "disk" else None,
            device=_device_for(tier),
            asked="source" if tier == "disk" else tier,
            numbers=None,
            ranks=find_ranks(),
            reserve=None,
            reserve_said="",
            cache_random=False,
            looked=(look.layout, ""),
            one_by_one=True,
        )
        if self._holding.tier == "source" and tier != "disk":
            raise NotPackable(self._holding.why)
        self._before = self._state()

    @property
    def why(self) -> str:
        """Where the samples are, and why there."""
        return self._holding.why.removeprefix("source: asked for; over a ")

    def batches(self, wanted: Iterable[Indices], *, ahead: bool = False) -> Iterator[Any]:
        """A batch for each of these, in order; asked for one at a time, `ahead`: one before its turn."""
        shards = (Shard(samples=samples) for samples in wanted)
        for _, batch in self._holding.batches(shards, ahead=ahead):
            if self._form is None or self._collate is None:
                yield batch
            else:
                yield self._collate(self._form.unstack(batch))

    def changed(self) -> bool:
        """Whether the script has changed its dataset since its samples were first read."""
        return self._can_change and self._state() != self._before

    def close(self) -> None:
        """Let go of memory and workers."""
        self._holding.close()

    def _look(self) -> Look:
        """Where the loader reads: a file that a dataset opens at its first read must not be open here too."""
        if not self._workers:
            return look_at(self._source, self._collate, elsewhere=False)
        look = partial(look_at, collate=self._collate, elsewhere=True)
        return look_elsewhere(self._source, look, **self._options)

    def _prefetch(self, ahead: int, source: Source) -> Prefetch:
        if not self._workers:
            return Inline(source)
        return Workers(source, workers=self._workers, ahead=ahead, pin=False, seed=0, **self._options)

    def _state(self) -> list[Any]:
        """What shows a change: here some samples; of a dataset that is read elsewhere, what it holds."""
        if self._workers:
            return plain_attributes(self._source.dataset)
        with kept_generators():
            samples = self._source.__getitems__(_spread(len(self._source), _AGAIN).tolist())
        return [(path, digest(value)) for path, value in walk(samples)]


def check(loader: DataLoader[Any]) -> None:
    """Refuse what shows without a read."""
    if isinstance(loader.dataset, IterableDataset):
        raise NotPackable("an IterableDataset: its samples have no numbers to be kept by")
    if loader.batch_sampler is None:
        raise NotPackable("batch_size=None: its dataset, or its sampler, makes the batches itself")
    if not hasattr(loader.dataset, "__getitem__") or not hasattr(loader.dataset, "__len__"):
        raise NotPackable(f"{type(loader.dataset).__name__} has no __len__ and __getitem__")
    if not len(loader.dataset):
        raise NotPackable("there are no samples")


def look_at(source: TorchSource, collate: Collate | None, *, elsewhere: bool) -> Look:
    """Read some samples twice, and some together. `elsewhere`: in a worker, with draws of its own."""
    verdict = find_randomness(source)
    if not verdict.cacheable:
        return Look(layout=None, unheld=f"{verdict.why}: kept samples would stay the same")
    try:
        with kept_generators():
            layout, form = _lay_out(source, collate, elsewhere)
    except (NotPackable, SourceBroken) as error:
        return Look(layout=None, unheld=str(error))
    return Look(layout=layout, unheld="", fingerprint=source.fingerprint(), form=form)


def _lay_out(
    source: TorchSource, collate: Collate | None, elsewhere: bool
) -> tuple[Layout, SampleForm | None]:
    """How samples are kept: by the batch, or each for itself where the script has a collate of its own."""
    numbers = _spread(len(source), _TOGETHER)
    if collate is None:
        return Layout.of(source.read(numbers)), None
    samples = source.__getitems__(numbers.tolist())
    form = SampleForm.of(samples[0])
    layout = Layout.of(form.stack(samples))
    before = tell_states()
    collate(samples)
    if elsewhere and tell_states() != before:
        raise NotPackable("its own collate_fn draws random numbers, in workers by their own seeds")
    return layout, form


class InReader:
    """How a worker begins that reads for a held loader: to the script's own code it looks like one of its."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        """In the worker, before its first sample."""
        info = get_worker_info()
        if info is not None and is_reader(info.dataset):
            source: Any = info.dataset.source  # type: ignore[attr-defined]
            source = source.source if isinstance(source, (DiskTier, Looking)) else source
            object.__setattr__(info, "dataset", source.dataset)  # it is frozen
        if self._own is not None:
            self._own(worker)


def is_reader(dataset: Any) -> bool:
    """Whether the loader of this dataset is a feed's own, and none of the script's."""
    return isinstance(dataset, Batches)


def _options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    if not loader.num_workers:
        return {}
    return {
        "worker_init_fn": InReader(loader.worker_init_fn),
        "multiprocessing_context": loader.multiprocessing_context,
        "timeout": loader.timeout,
    }


def _open_disk(cache: Path, source: Source, layout: Layout) -> DiskTier:
    tier = DiskTier(source, cache, cap_bytes=sys.maxsize, layout=layout)
    if tier.refused:
        raise NotPackable(tier.why)
    return tier


def _device_for(tier: str) -> torch.device:
    """In the host's memory batches stay where a DataLoader hands them out."""
    if tier in ("vram", "window") or (tier == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _spread(length: int, count: int) -> Indices:
    return np.linspace(0, length - 1, min(length, count)).astype(np.int64)
