"""What every source is: samples by number, read a batch at a time."""

import operator
from abc import abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset

Indices: TypeAlias = NDArray[np.int64]


class Source(Dataset[Any]):
    """Samples 0 to len - 1. A subclass gives `__len__`, `read` and `fingerprint`.

    A source is also a plain map-style torch dataset. It pickles without anything open in it (connections,
    files, clients: `PerProcess`), so that forked and spawned workers each open their own.

    `in_flight` is how many samples it can have under way at once, where each takes a trip: a feed then reads
    so many batches ahead that as many are.
    """

    in_flight: int = 0
    # Whether code of the user's makes the samples, or they may be unlike: a feed looks at some of them before
    # it holds any, for whether they are the same when read again, and of one shape.
    user_made: bool = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Indices) -> Any:
        """The batch of these samples, in this order; the same number may come twice.

        What default_collate would have made of the samples: a tensor with one row for each, or dicts, tuples
        and lists of such; a list of values where there is no tensor for them (text). It is the caller's own:
        nothing else keeps it, and it shares no memory with files or caches.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of what the samples are made of: it changes when they do, as far as that is cheap to tell.

        Of names, sizes and times of files, the query and the state of its tables; never of all the data.
        """

    def kept_as(self) -> str:
        """What rows that are kept of it, in memory and on disk, are known by: these samples and no others'.

        Its fingerprint, and where two sets may have the same one, what tells them apart: such as where they
        lie. That is no part of the fingerprint itself, so that a resume may follow data that were moved.
        """
        return self.fingerprint()

    def __getitem__(self, index: int) -> Any:
        """One sample."""
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples by one read: what a DataLoader's fetcher asks for."""
        chosen = checked(indices, len(self))
        batch = self.read(chosen)
        return [_row(batch, row) for row in range(len(chosen))]


def told_apart(fingerprint: str, *by: str) -> str:
    """The fingerprint, and a digest of what else tells samples from others that look alike."""
    told = "\0".join(by).encode("utf-8", "surrogateescape")
    return f"{fingerprint} {blake2b(told, digest_size=16).hexdigest()}"


def checked(indices: Sequence[int] | Indices, length: int) -> Indices:
    """The numbers as an array, those below 0 counted from the end; IndexError for one that is not there."""
    chosen = np.asarray(indices, dtype=np.int64)
    chosen = np.where(chosen < 0, chosen + length, chosen)
    wrong = chosen[(chosen < 0) | (chosen >= length)]
    if wrong.size:
        raise IndexError(f"no sample {wrong[0]}: there are {length}, from 0 to {length - 1}")
    return chosen


def _row(batch: Any, row: int) -> Any:
    def one(leaf: Any) -> Any:
        return leaf[row].clone() if isinstance(leaf, torch.Tensor) else leaf[row]

    # A list whose items are no tensors is a column of values; pytree would descend into it.
    return tree_map(one, batch, is_leaf=_is_column)


def _is_column(node: Any) -> bool:
    return isinstance(node, list) and not any(
        isinstance(item, (torch.Tensor, dict, tuple, list)) for item in node
    )
