"""Samples side by side in one memory, the host's or a device's: one tensor a leaf, one flag a sample.

A sample's flag is set after its bytes are there, and neither changes again: what is flagged is whole, for
whoever shares the memory. x86 keeps the order of stores; elsewhere the interpreter itself stores more between
the bytes and the flag than a store buffer holds.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.feed.layout import Layout, Leaf
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices, checked
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.pack import Bytes

Words: TypeAlias = NDArray[Any]
Memory: TypeAlias = tuple[list[torch.Tensor], Bytes]

# Copying is bound by memory: more threads than this add nothing.
_COPIERS = min(4, os.cpu_count() or 1)
# What is worth another thread. On 2 cores two were as fast as one for 25 MB, and twice as fast for 67 MB.
_THREAD_BYTES = 16 << 20
# What is looked through at once for a flag that is not set.
_STRIDE = 1 << 16
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_POOL = PerProcess(partial(ThreadPoolExecutor, _COPIERS, thread_name_prefix="stoker-rows"))


class Rows:
    """Samples 0 to len - 1, each either held or not.

    On a device, all work is queued on the current stream: `get` on another one must wait for `put` itself.
    """

    def __init__(self, layout: Layout, leaves: Sequence[torch.Tensor], present: Bytes) -> None:
        for leaf, tensor in zip(layout.leaves, leaves, strict=True):
            if (tensor.dtype, tuple(tensor.shape)) != (leaf.dtype, (len(present), *leaf.shape)):
                raise ValueError(
                    f"a tensor of {tensor.dtype} {list(tensor.shape)} for {len(present)} samples of {leaf}"
                )
        self.layout = layout
        self.device = leaves[0].device
        self._count = len(present)
        self._memory: Memory | None = (list(map(words_of, leaves, layout.leaves)), present)
        self._first_absent = 0  # as far as was looked: all samples before it are held

    @classmethod
    def allocate(cls, layout: Layout, count: int, device: torch.device | str) -> "Rows":
        """Memory for that many samples, none of them held; torch.OutOfMemoryError where it does not fit."""
        leaves = [
            torch.empty((count, *leaf.shape), dtype=leaf.dtype, device=device) for leaf in layout.leaves
        ]
        return cls(layout, leaves, np.zeros(count, np.uint8))

    @staticmethod
    def bytes_needed(layout: Layout, count: int) -> int:
        """What that many samples take, without the flags, which are always in the host's memory."""
        return count * sum(leaf.bytes for leaf in layout.leaves)

    def __len__(self) -> int:
        return self._count

    def put(self, indices: Indices, batch: Any) -> None:
        """Keep the batch's rows as these samples. What is held already stays as it is."""
        rows, flags = self.opened()
        numbers = checked(indices, len(self))
        given = [tensor.detach() for tensor in self.layout.flatten(batch, len(numbers))]
        absent = np.flatnonzero(flags[numbers] == 0)
        if len(absent) < len(numbers):
            numbers, chosen = numbers[absent], torch.from_numpy(absent)
            given = [tensor.index_select(0, chosen.to(tensor.device)) for tensor in given]
        for at, (tensor, leaf) in enumerate(zip(given, self.layout.leaves, strict=True)):
            # Waits until the host's memory was read: the caller may write to it as soon as this returns.
            self._store(at, rows[at], numbers, words_of(_plain(tensor.to(self.device)), leaf))
        flags[numbers] = 1

    def fill(self, write: Callable[[Any], Iterable[Any]]) -> None:
        """Have samples written in place, in the host's memory: `write` gets it and tells which are there.

        What comes in batches is copied twice: 100,000 rows of 1.8 KB of a database were there after 450 ms,
        and this way after 363 (medians of 15 turns on 2 cores; the opening of their source took 119 of it).
        """
        rows, flags = self.opened()
        leaves = [as_leaf(words, leaf) for words, leaf in zip(rows, self.layout.leaves, strict=True)]
        for places in write(self.layout.unflatten(leaves)):
            flags[places] = 1

    def _store(self, leaf: int, rows: torch.Tensor, numbers: Indices, given: torch.Tensor) -> None:
        rows.index_copy_(0, torch.from_numpy(numbers).to(self.device), given)

    def get(self, indices: torch.Tensor) -> Any:
        """The batch of these samples, all of them held, on this memory's device; it is the caller's own.

        The indices are int64, and on the same device: there nothing waits for them, and nothing checks them.
        """
        return self.layout.unflatten(self._chosen(indices))

    def get_each(self, indices: torch.Tensor, sizes: Sequence[int]) -> list[Any]:
        """Batches of these sizes by one gather, as `get` gives one; they share an allocation."""
        return self.layout.split(self._chosen(indices), sizes)

    def _chosen(self, indices: torch.Tensor) -> list[torch.Tensor]:
        if self.device.type == "cpu":
            batch = [fresh(leaf, len(indices)) for leaf in self.layout.leaves]
            self.gather(indices, batch)
            return batch
        rows, _ = self.opened()
        chosen = zip(self.layout.leaves, rows, strict=True)
        return [as_leaf(words.index_select(0, indices), leaf) for leaf, words in chosen]

    def gather(self, indices: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """Copy these samples into dense tensors of the caller's, one a leaf; all in the host's memory."""
        rows, _ = self.opened()
        numbers = checked(indices.numpy(), len(self))
        for leaf, words, into in zip(self.layout.leaves, rows, out, strict=True):
            _take(words.numpy(), numbers, words_of(into, leaf).numpy())

    def find(self, indices: Indices) -> Indices:
        """Where in this memory these samples are, for `get`: each in the row of its number."""
        return indices

    def held(self, indices: Indices) -> NDArray[np.bool_]:
        """Of each of these samples, whether it is held."""
        return self.opened()[1][indices].astype(np.bool_)

    def holds(self, indices: Indices) -> bool:
        """Whether all of these samples are held."""
        return bool(self.held(indices).all())

    @property
    def complete(self) -> bool:
        """Whether all samples are held. Every flag is looked at once, and the first absent one each time."""
        _, flags = self.opened()
        while self._first_absent < len(flags):
            # Of a copy: another process sets flags meanwhile, also the one that was found not to be set.
            part = flags[self._first_absent : self._first_absent + _STRIDE].tobytes()
            absent = part.find(0)
            if absent >= 0:
                self._first_absent += absent
                return False
            self._first_absent += len(part)
        return True

    def close(self) -> None:
        """Let go of the memory; batches handed out stay good."""
        self._memory = None

    def opened(self) -> Memory:
        """The rows of each leaf as words, and the flags: they stay while the caller refers to them."""
        memory = self._memory  # which another thread may close meanwhile
        if memory is None:
            raise UsageError("these samples were let go of by close(): open them again to use them")
        return memory


def words_of(tensor: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """A dense tensor's rows as integers, the widest that a row is made of: (n, words), a view.

    Torch moves integers of any size, but not every type that it has (uint16, float8); and wide ones faster.
    """
    word = next(word for word in _WORDS if leaf.bytes % word.itemsize == 0)
    return tensor.view(-1).view(word).view(len(tensor), leaf.bytes // word.itemsize)


def as_leaf(words: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """What `words_of` made words of."""
    if not words.numel():  # nothing to look at in another way, and nothing has no stride
        return torch.empty((words.shape[0], *leaf.shape), dtype=leaf.dtype, device=words.device)
    return words.view(leaf.dtype).view(words.shape[0], *leaf.shape)


def bring(places: Sequence[Indices], device: torch.device) -> torch.Tensor:
    """The numbers of several batches on the device, moved at one go behind the work that is queued there."""
    numbers = torch.from_numpy(np.concatenate(places))
    if device.type == "cuda":  # from memory that is not pinned, the copy would wait for all of that work
        pinned = numbers.pin_memory() if len(numbers) else numbers
        numbers = pinned.to(device, non_blocking=True)
    return numbers


def fresh(leaf: Leaf, count: int) -> torch.Tensor:
    """A dense tensor for a batch of this leaf in the host's memory, not yet filled."""
    return as_leaf(torch.from_numpy(fresh_rows(count, leaf.bytes)), leaf)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Dense, with its bytes as they read, and beginning where a word may."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    apart = tensor.storage_offset() * tensor.itemsize % 8 or tensor.data_ptr() % 8
    return tensor.clone() if apart else tensor


def _take(rows: Words, numbers: Indices, out: Words) -> None:
    """Copy rows into `out`.

    Not by index_select, whose OpenMP threads spin while they wait for each other. Beside another busy process
    on 2 cores, a batch of 64 x 256 KB took as long either way, but 17 ms of CPU time instead of 1.5.
    """
    threads = max(1, min(_COPIERS, out.nbytes // _THREAD_BYTES))
    # Numpy holds no lock while it takes. The numbers were checked; "raise" would copy everything twice.
    take = partial(np.take, rows, axis=0, mode="clip")
    parts = list(zip(np.array_split(numbers, threads), np.array_split(out, threads), strict=True))
    others = [_POOL.get().submit(take, part, out=into) for part, into in parts[1:]]
    take(parts[0][0], out=parts[0][1])
    for other in others:
        other.result()
