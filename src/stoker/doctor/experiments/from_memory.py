"""The loop with its samples in memory: what a step takes once a feed holds them, taking batches included.

The samples of the held batches are kept as the change `feed` would keep the script's, and handed out in the
same way. They stand for a larger set by being there several times over, so that they come out of memory and
not out of a cache of the CPU. Where they cannot be kept, the message `unheld` says why.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _DatasetKind

from stoker.doctor.experiments.condition import Condition
from stoker.doctor.held import Held, bytes_in
from stoker.errors import NotPackable
from stoker.facts import host
from stoker.feed.held_loader import HeldLoader

# What is kept, and in how many batches: more than most caches of a CPU hold, and little to fill.
_MOST_BYTES, _MOST_BATCHES = 128 << 20, 64
# 70 samples are read twice first, within one step of the loop: larger ones would take seconds there.
_MOST_OF_SAMPLE = 16 << 20
# Of the shared memory that is free: the script's workers need room for their batches.
_SHARE_OF_SHM = 0.25


class FromMemory(Condition):
    """Steps on batches that come out of memory; between which moments they were made is told."""

    warm = 4
    # Few enough that a script seldom ends in them, since there is more to find out afterwards.
    steps = 512
    most = 2.0

    def __init__(self, held: "HeldSamples", tell: Callable[..., None]) -> None:
        self.held = self._samples = held
        self._tell = tell
        self._began = 0.0

    def begin(self) -> None:
        """The steps count from here."""
        self._began = time.time()

    def leave(self) -> None:
        """Let go of the samples."""
        self._samples.close()

    def tell(self, seconds: float, steps: int) -> None:
        """When they were made: the record has what each took, and which of them began an epoch."""
        self._tell("from_memory", began=self._began, t=time.time())


def from_memory(held: Held, iterator: Any, tell: Callable[..., None]) -> Iterator[Condition]:
    """The condition; none for a stream, or where the script puts batches together itself."""
    if not held.full or not iterator._auto_collation or iterator._collate_fn is not default_collate:
        return
    if iterator._dataset_kind == _DatasetKind.Iterable:
        return
    try:
        samples = HeldSamples(held.batches())
    except NotPackable as error:
        tell("unheld", why=str(error))
        return
    except Exception as error:  # noqa: BLE001  # amid the script's own step, which is not to end by it
        tell("unheld", why=f"{type(error).__name__}: {error}")
        return
    yield FromMemory(samples, tell)


class HeldSamples:
    """Batches of samples drawn at random from memory, one epoch after another."""

    def __init__(self, batches: Sequence[Any]) -> None:
        dataset = _Samples(batches)
        loader = DataLoader(dataset, dataset.size, shuffle=True, generator=torch.Generator())
        assert loader.batch_sampler is not None
        self._draws = loader.batch_sampler
        self._samples = HeldLoader(loader, "ram", cache=Path(), number=0, lives_on=False)
        self._epoch: Iterator[Any] = iter(())
        for _ in range(len(loader)):  # the first epoch fills the memory
            self.next()

    def next(self) -> Any:
        """The next one."""
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = self._samples.batches(np.asarray(numbers) for numbers in self._draws)
            batch = next(self._epoch)
        return batch

    def close(self) -> None:
        """Let go of the memory."""
        self._samples.close()


class _Samples(Dataset[Any]):
    """The samples of some batches of one size, several times over."""

    def __init__(self, batches: Sequence[Any]) -> None:
        fitting = _fitting(bytes_in(batches[0]))
        flat = [tree_flatten(batch) for batch in batches[:fitting]]
        self._batches, self._spec = [leaves for leaves, _ in flat], flat[0][1]
        if any(spec != self._spec for _, spec in flat):
            raise NotPackable("batches that are not built alike")
        self.size = _rows_of(self._batches)
        if bytes_in(self._batches[0]) > self.size * _MOST_OF_SAMPLE:
            raise NotPackable(f"samples of more than {_MOST_OF_SAMPLE >> 20} MiB take too long to look at")
        self._count = self.size * fitting

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        batch, row = divmod(number % (self.size * len(self._batches)), self.size)
        return tree_unflatten([leaf[row] for leaf in self._batches[batch]], self._spec)


def _fitting(size: int) -> int:
    """How many batches of this size are kept: one where all that is meant for them is less."""
    free = host.read().shm_free_bytes
    if free is not None and size > free * _SHARE_OF_SHM:
        raise NotPackable(f"a batch has {size:,} bytes, and {free:,} are free in /dev/shm")
    room = _MOST_BYTES if free is None else min(_MOST_BYTES, int(free * _SHARE_OF_SHM))
    return max(1, min(_MOST_BATCHES, room // max(1, size)))


def _rows_of(batches: Sequence[Sequence[Any]]) -> int:
    """How many samples each batch has, by its tensors, which are rows of them."""
    leaves = [leaf for batch in batches for leaf in batch]
    rows = {len(leaf) if isinstance(leaf, torch.Tensor) and leaf.dim() else 0 for leaf in leaves}
    if len(rows) != 1 or not max(rows):
        raise NotPackable(f"batches of {sorted(rows)} rows")
    return max(rows)
