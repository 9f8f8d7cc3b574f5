"""Samples from any map-style torch dataset, put into batches as a DataLoader would."""

import hashlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, IterableDataset, default_collate

from stoker.errors import NoRoom, SourceBroken, UsageError
from stoker.facts.secrets import hide_password
from stoker.feed.arguments import checked_call
from stoker.feed.generators import kept_generators
from stoker.feed.sample_digest import describe, digest, walk
from stoker.feed.sources.base import Indices, Source, checked, told_apart
from stoker.feed.value_digest import code_digest

# As many are read twice for a fingerprint: 16 reads, a second or so from a slow store.
_FINGERPRINTED = 8
# torch's own words.
_NO_SHM = "unable to allocate shared memory(shm)"
# What ties a dataset's samples to the epoch, and so makes what it gives now a matter of when it is asked.
_EPOCH_NAMES = ("set_epoch", "epoch", "_epoch", "current_epoch")


class TorchSource(Source):
    """A dataset with `__len__` and `__getitem__`; `__getitems__` is used where it has one.

    Samples may be tensors, arrays, numbers, text, and dicts, tuples, namedtuples and lists of such. Those of
    different shapes need a `collate_fn`, as in a DataLoader. As a dataset it gives what `dataset` gives.

    >>> TorchSource([(torch.zeros(2), 5), (torch.ones(2), 7)]).read(np.array([1, 0]))
    [tensor([[1., 1.],
            [0., 0.]]), tensor([7, 5])]
    """

    user_made = True

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        _check_map_style(dataset)
        checked_call("collate_fn", collate_fn)
        self.dataset = dataset
        self._collate = collate_fn
        self._fingerprint: str | None = None
        self._kept_as: str | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"TorchSource({len(self)} samples of {type(self.dataset).__name__})"

    @property
    def collates(self) -> bool:
        """Whether a collate_fn was given."""
        return self._collate is not None

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The dataset's own samples, as it gives them."""
        return self._samples(checked(indices, len(self)))

    def read(self, indices: Indices) -> Any:
        """The samples by default_collate, or by the collate_fn that was given."""
        chosen = checked(indices, len(self))
        if not len(chosen):
            return [] if not len(self) else emptied(self.read(np.zeros(1, np.int64)))
        return self._collated(self._samples(chosen), chosen)

    def collated(self, samples: list[Any]) -> Any:
        """A batch of these samples, by the collate_fn that was given."""
        assert self._collate is not None
        return _owned(self._collate(samples), samples)

    def _collated(self, samples: list[Any], chosen: Indices) -> Any:
        if self.collates:
            return self.collated(samples)
        return collate(
            samples,
            lambda place: f"sample {chosen[place]}",
            cure="Give TorchSource a collate_fn that puts such samples into a batch.",
        )

    def fingerprint(self) -> str:
        """The dataset's own `fingerprint()` where it has one; else a weak one, taken once.

        That is its class, its length, and the bits of 8 samples, read twice with the generators seeded. A
        change in any other sample is not noticed. Samples that differ on the second read, or that follow the
        epoch, count by their types and shapes alone. One that draws rarely from a generator of its own can
        look changed when it is not: give such a dataset a `fingerprint()`.
        """
        if self._fingerprint is None:
            own = getattr(self.dataset, "fingerprint", None)
            self._fingerprint = str(own()) if callable(own) else self._weak_fingerprint()
        return self._fingerprint

    def kept_as(self) -> str:
        """Of the collate too, where one was given: of its code, and what it makes of the 8 samples.

        What it makes counts by types and shapes alone where it makes something else each time. What its code
        calls counts by that alone.
        """
        if self._kept_as is None:
            told = self.fingerprint()
            if self._collate is not None:
                told = told_apart(told, code_digest(self._collate), *self._told_batch())
            self._kept_as = told
        return self._kept_as

    @property
    def known(self) -> bool:
        """Whether the fingerprint is taken."""
        return self._fingerprint is not None

    def know(self, *, fingerprint: str | None, kept_as: str | None = None) -> None:
        """What was found elsewhere, where the samples are read: nothing is read for it here."""
        self._fingerprint = self._fingerprint if fingerprint is None else fingerprint
        self._kept_as = self._kept_as if kept_as is None else kept_as

    def _told_batch(self) -> list[str]:
        if not len(self):
            return []
        with kept_generators():
            first, second = ([self.read(self._seeded())] for _ in range(2))
        kinds = [f"{path} {describe(value)}" for path, value in walk(first)]
        bits = _bits_of(first)
        return kinds + bits if bits == _bits_of(second) else kinds

    def _samples(self, indices: Indices) -> list[Any]:
        numbers = indices.tolist()
        if callable(getattr(self.dataset, "__getitems__", None)):
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[number] for number in numbers]

    def _weak_fingerprint(self) -> str:
        kind = type(self.dataset)
        hashed = hashlib.sha256(f"torch 1\0{kind.__module__}.{kind.__qualname__}\0{len(self)}".encode())
        if len(self):
            with kept_generators():
                first, second = self._seeded_read(), self._seeded_read()
            fixed = find_epoch_name(self.dataset) is None and _bits_of(first) == _bits_of(second)
            for path, value in walk(first):
                hashed.update(f"\0{path}\0{describe(value)}".encode())
            if fixed:
                hashed.update("\0".join(_bits_of(first)).encode())
        return hashed.hexdigest()

    def _seeded_read(self) -> list[Any]:
        """A few samples spread over the set, with what they draw from the global generators made the same."""
        return self._samples(self._seeded())

    def _seeded(self) -> Indices:
        """The numbers of those, once the generators are seeded."""
        random.seed(0)
        np.random.seed(0)
        torch.default_generator.manual_seed(0)
        return np.linspace(0, len(self) - 1, min(_FINGERPRINTED, len(self))).astype(np.int64)


def collate(samples: list[Any], name: Callable[[int], str], *, cure: str) -> Any:
    """What default_collate makes of them; SourceBroken, with a cure, where it cannot.

    `name` tells what the sample at a place is called.
    """
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if _NO_SHM in str(error):  # of a worker, whose batches are made where the loop can take them up
            raise NoRoom(
                f"a batch of {len(samples)} samples has no room in shared memory ({str(error).strip()}): "
                "make /dev/shm larger (docker: --shm-size), or read in this process with workers=0"
            ) from error
        raise SourceBroken(f"{_explain(samples, name, error)} {cure}") from error


def find_epoch_name(dataset: Any) -> str | None:
    """The name by which the dataset, or one that it wraps, is told the epoch; None where there is none."""
    for inner in unwrapped(dataset):
        for name in _EPOCH_NAMES:
            if hasattr(inner, name):
                return name
    return None


def unwrapped(dataset: Any) -> Iterator[Any]:
    """A dataset and those inside it: a Subset's, a ConcatDataset's."""
    waiting, seen = [dataset], set()
    while waiting:
        inner = waiting.pop()
        if inner is None or id(inner) in seen:
            continue
        seen.add(id(inner))
        yield inner
        waiting.append(getattr(inner, "dataset", None))
        among = getattr(inner, "datasets", None)
        waiting.extend(among if isinstance(among, (list, tuple)) else [])


def _check_map_style(dataset: Any) -> None:
    name = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise UsageError(f"a {name} was given: give the dataset inside it, loader.dataset")
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            f"{name} is an IterableDataset: its samples have no numbers, so they can be neither ordered nor "
            "kept nor resumed. Give it __len__ and __getitem__ (a map-style Dataset), or use a DataLoader."
        )
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise UsageError(
            f"{hide_password(os.fsdecode(dataset))!r} is no dataset: give one, or a source that reads from "
            "there, such as ImageSource, ObjectSource, NpySource, VolumeSource or SqlSource"
        )
    if not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{name} has no __getitem__: give a map-style dataset, with __len__ and __getitem__")
    try:
        len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise UsageError(
            f"{name} has no length: give it __len__, which says how many samples there are"
        ) from error
    if isinstance(dataset, dict):
        _check_keys(dataset)


def _check_keys(dataset: dict[Any, Any]) -> None:
    absent = next((number for number in range(len(dataset)) if number not in dataset), None)
    if absent is None:
        return
    try:
        dataset[absent]  # a class of its own may make it now
    except LookupError as error:
        raise UsageError(
            f"{absent} is no key of this {type(dataset).__name__}, its first is {next(iter(dataset))!r}: "
            f"samples are asked for by 0 to {len(dataset) - 1}. Give list(dataset.values()), or that value "
            "which is the dataset"
        ) from error


def _bits_of(samples: list[Any]) -> list[str]:
    told = []
    for path, value in walk(samples):
        try:
            told.append(f"{path} {digest(value).hex()}")
        except TypeError:
            told.append(path)  # no bits to tell; its type counts
    return told


def _explain(samples: list[Any], name: Callable[[int], str], error: Exception) -> str:
    """What default_collate could not put together, and in which samples."""
    first = {path: describe(value) for path, value in walk(samples[0])}
    for place, sample in enumerate(samples):
        other = {path: describe(value) for path, value in walk(sample)}
        differing = [
            f"{path} is {first.get(path, 'absent')} in {name(0)} "
            f"and {other.get(path, 'absent')} in {name(place)}"
            for path in dict.fromkeys([*first, *other])
            if first.get(path) != other.get(path)
        ]
        if differing:
            more = f", and {len(differing) - 3} fields more" if len(differing) > 3 else ""
            return f"these samples are not alike: {'; '.join(differing[:3])}{more}."
    kinds = ", ".join(f"{path} ({kind})" for path, kind in first.items())
    return f"default_collate cannot put these samples into a batch: {kinds}: {error}."


def emptied(batch: Any) -> Any:
    """The batch without its rows."""
    return tree_map(lambda leaf: leaf[:0], batch, is_leaf=_is_text)


def _is_text(node: Any) -> bool:
    """Whether this is a column of text; default_collate makes a list of it in a dict, a tuple in a tuple."""
    return isinstance(node, (list, tuple)) and all(isinstance(item, (str, bytes)) for item in node)


def _owned(batch: Any, samples: list[Any]) -> Any:
    """The batch, with what lies in a sample's memory copied: a collate may hand on what the dataset holds."""
    found = [span for leaf in tree_leaves(samples) if (span := _span(leaf)) is not None]
    spans = np.array(found, np.uint64).reshape(-1, 2)

    def own(leaf: Any) -> Any:
        span = _span(leaf)
        shared = span is not None and bool(((spans[:, 0] < span[1]) & (spans[:, 1] > span[0])).any())
        if not shared:
            return leaf
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()

    return tree_map(own, batch)


def _span(leaf: Any) -> tuple[int, int] | None:
    """Where the memory of a tensor or array begins and ends."""
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.device.type == "cpu":
        begin = leaf.untyped_storage().data_ptr()
        return (begin, begin + leaf.untyped_storage().nbytes()) if begin else None
    if isinstance(leaf, np.ndarray):
        while isinstance(leaf.base, np.ndarray):  # a view's own bounds depend on its strides
            leaf = leaf.base
        return leaf.ctypes.data, leaf.ctypes.data + leaf.nbytes
    return None
