"""A feed's tier in place of a DataLoader: samples are read once, in the order of the script's own sampler.

Torch's own iterator draws the seeds and the indices, as many ahead as before; only where batches come from
is another. A loader whose samples cannot be kept is left as it is, and the reason told.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_data
from torch.utils.data import dataloader as torch_dataloader

from stoker.changes.change import Change, Choice
from stoker.changes.loader_classes import is_stateful, put_into_each
from stoker.changes.loaders import lives_on, note
from stoker.errors import NotPackable, StokerError
from stoker.feed.held_loader import TIERS, HeldLoader, is_reader
from stoker.feed.sources.base import Indices
from stoker.watch.record import default_root


@dataclass(eq=False)
class _Held:
    """A dataset that is held, for whichever loaders put it into batches alike; or that is not."""

    dataset: Any
    collate: Any
    samples: HeldLoader | None
    loaders: "weakref.WeakSet[DataLoader[Any]]"
    where: "_Where | None" = None
    epochs: int = 0
    # Whether a batch of a later epoch was handed out.
    again: bool = False


@dataclass
class _Tier:
    wanted: str | None = None
    held: list[_Held] = field(default_factory=list)
    made: int = 0


_tier = _Tier()


def settled() -> bool:
    """Whether every loader that is held has gone through an epoch, and begun another: nothing is read then.

    The other's first batch waits for the end of the workers that read: no part of the rate from there on.
    """
    return all(one.again for one in _tier.held if one.samples is not None)


def _apply(value: str) -> None:
    installed = _tier.wanted is not None
    _tier.wanted = value
    if installed:
        return
    put_into_each(_put)


def _put(kind: Any) -> None:
    make: Callable[..., Any] = kind._get_iterator

    @wraps(make)
    def _get_iterator(self: Any) -> Any:
        if torch.is_grad_enabled() and not is_reader(self.dataset):
            held = _held_for(self)
            if held.samples is not None:
                return HeldIterator(self, held)
        return make(self)

    kind._get_iterator = _get_iterator


def _held_for(loader: Any) -> _Held:
    """What is known of its dataset; one that is new is looked at, and what no loader uses is let go of."""
    for one in _tier.held:
        if one.dataset is loader.dataset and one.collate == loader.collate_fn:
            one.loaders.add(loader)
            if one.samples is not None and one.samples.changed():
                _give_up(one, loader, "the script has changed its dataset since it was first read")
            return one
    for gone in [one for one in _tier.held if not one.loaders]:
        _tier.held.remove(gone)
        _let_go(gone)
    held = _Held(
        dataset=loader.dataset,
        collate=loader.collate_fn,
        samples=None,
        loaders=weakref.WeakSet((loader,)),
    )
    _tier.held.append(held)
    _tier.made += 1
    assert _tier.wanted is not None
    try:
        if is_stateful(loader):
            raise NotPackable("a StatefulDataLoader's place, which it saves, is that of its own iterator")
        held.samples = HeldLoader(
            loader, _tier.wanted, cache=_cache(), number=_tier.made, lives_on=lives_on(loader)
        )
        # Told when the script is over: a tier is moved once the model's need is known.
        held.where = _Where(held.samples)
        note(loader, before={"feed": None}, after={"feed": held.where})
    except NotPackable as error:
        note(loader, left=f"feed: {error}")
    except Exception as error:  # noqa: BLE001  (whatever a look meets, the script runs as it is)
        said = (str(error).strip().splitlines() or [""])[-1]  # a worker's error comes with its traceback
        note(loader, left=f"feed: looking at its samples failed: {type(error).__name__}: {said}")
    return held


class _Where:
    """Where samples are by the time that somebody asks; once they are let go of, where they were."""

    def __init__(self, samples: HeldLoader) -> None:
        self._now: HeldLoader | str = samples

    def settle(self) -> None:
        """Keep the words, and not the samples and their dataset."""
        self._now = str(self)

    def __str__(self) -> str:
        return self._now if isinstance(self._now, str) else self._now.why


def _let_go(held: _Held) -> None:
    if held.samples is not None and held.where is not None:
        held.where.settle()
        held.samples.close()
        held.samples = None


def _give_up(held: _Held, loader: Any, why: str) -> None:
    _let_go(held)
    note(loader, left=f"feed: {why}")


def _cache() -> Path:
    return default_root().absolute().parent / "cache"


class HeldIterator(torch_dataloader._BaseDataLoaderIter):
    """One epoch after another of a loader whose samples are held."""

    def __init__(self, loader: Any, held: _Held) -> None:
        super().__init__(loader)
        # Batches whose indices are drawn ahead: a sampler may draw them from the script's generators.
        self._ahead = self._num_workers * (loader.prefetch_factor or 0)
        self._num_workers = 0  # to those who look for workers of its own
        self._held, self._loader = held, weakref.ref(loader)
        self._fetcher = torch_dataloader._DatasetKind.create_fetcher(
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )
        self._begin()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._begin()

    def _begin(self) -> None:
        samples = self._held.samples
        self._draws = _Draws(weakref.WeakMethod(self._next_index))
        self._handed = 0
        # Over the bus one batch is on its way beside the one in use, if its indices are drawn by then anyway.
        ahead = self._ahead > 0
        self._batches = None if samples is None else samples.batches(_numbers(self._draws), ahead=ahead)
        self._draws.draw(self._ahead)

    def _next_data(self) -> Any:
        self._draws.draw(self._ahead + self._handed + 1)
        data = self._next_held()
        self._handed += 1
        self._draws.waiting.popleft()
        return pinned(data, self._pin_memory_device) if self._pin_memory else data

    def _next_held(self) -> Any:
        """The next batch, from the tier; from the dataset itself where that turns out not to hold it."""
        if self._batches is not None:
            try:
                batch = next(self._batches)
                self._held.again = self._held.epochs > 0
                return batch
            except StopIteration:
                self._held.epochs += 1
                raise
            except StokerError as error:
                self._batches = None
                if self._held.samples is not None:
                    _give_up(self._held, self._loader(), str(error))
        self._draws.draw(self._handed + 1)
        if not self._draws.waiting:
            raise StopIteration
        return self._fetcher.fetch(self._draws.waiting[0])


def pinned(data: Any, device: str | None = None) -> Any:
    """In page-locked memory, as the loader would have it; what is on a device already is left there."""
    there = any(isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in tree_leaves(data))
    return data if there else torch_data.pin_memory.pin_memory(data, device)


class _Draws:
    """Indices as the sampler gives them; those whose batches the loop does not have yet wait.

    It must not keep its iterator: what is being read ends when that is let go of.
    """

    def __init__(self, next_index: "weakref.WeakMethod[Callable[[], Any]]") -> None:
        self._next_index = next_index
        self._over = False
        self.drawn = 0
        self.waiting: deque[Any] = deque()

    def draw(self, count: int) -> bool:
        """Have so many drawn in all; whether there are so many."""
        while self.drawn < count and not self._over:
            draw = self._next_index()
            try:
                assert draw is not None
                self.waiting.append(draw())
                self.drawn += 1
            except StopIteration:
                self._over = True
        return self.drawn >= count

    def gone(self) -> int:
        """How many of them the loop has."""
        return self.drawn - len(self.waiting)


def _numbers(draws: _Draws) -> Iterator[Indices]:
    """As arrays, each when it is asked for."""
    at = 0
    while draws.draw(at + 1):
        index = draws.waiting[at - draws.gone()]
        try:
            numbers = np.asarray(index, dtype=np.int64)
        except (TypeError, ValueError):
            numbers = np.empty((0, 0), np.int64)
        if numbers.ndim != 1:
            raise NotPackable(f"its sampler gives {index!r:.80}, and not the numbers of samples")
        yield numbers
        at += 1


def _lacks(value: str) -> str | None:
    if value in ("vram", "window") and not torch.cuda.is_available():
        return "no CUDA device"
    if value == "disk":
        try:
            import xxhash  # noqa: F401
        except ImportError:
            return "xxhash is not installed: pip install 'stoker[disk]'"
    return None


CHANGE = Change(
    id="feed",
    of="loader",
    text="samples kept in memory or on disk once they are read, in place of a DataLoader",
    kind="same",
    values=Choice(TIERS),
    apply=_apply,
    lacks=_lacks,
    backfires="what is random in a sample must not be kept with it (ultralytics#1010): such loaders "
    "are left alone; takes the memory that all samples need; in vram and window batches are on the device "
    "already, which a loop that works on them on the CPU first does not expect; a dataset that the script "
    "changes while an epoch runs is read as it was; a cache on disk outlives the run, and of data changed in "
    "place notices 8 samples",
)
