"""What a dataset is made of: a digest of its classes' text and what its objects hold, or its attributes.

The digest is for a cache that outlives the run. A dataset with another size to crop to, another list of files
or another line in its `__getitem__` is another one. Data that changed in its files is not seen by this.
"""

import hashlib
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from stoker.feed.sources.torch import unwrapped

# Of each large block of numbers, and of everything else together: a list of a million paths takes 0.1 GB.
_BLOCK_BYTES = 1 << 20
_MOST_BYTES = 256 << 20


def state_digest(dataset: Any) -> str:
    """Hexadecimal digits; the same for the same dataset in another run, as far as it can be pickled."""
    hashed = hashlib.sha256()
    for inner in unwrapped(dataset):
        for kind in type(inner).__mro__:
            try:
                hashed.update(inspect.getsource(kind).encode())
            except (OSError, TypeError):
                hashed.update(f"{kind.__module__}.{kind.__qualname__}".encode())
    try:
        _Pickler(_Hashing(hashed.update), protocol=4).dump(dataset)
    except _Enough:
        pass  # what comes after so much is not looked at
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        # Locks, open files, lambdas: as far as it got, and what it came to.
        hashed.update(type(error).__name__.encode())
    return hashed.hexdigest()


def plain_attributes(dataset: Any) -> list[dict[str, Any]]:
    """What a script may change in a dataset, or in those inside it, between epochs: numbers and texts.

    Anything else is known by its place in memory alone: what is changed within it is not seen.
    """
    return [
        {name: _plain(value) for name, value in getattr(inner, "__dict__", {}).items()}
        for inner in unwrapped(dataset)
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, bytes, type(None))) else id(value)


class _Enough(Exception):
    """So much was looked at."""


class _Hashing:
    """A file that only counts and hashes what is written to it."""

    def __init__(self, update: Callable[[Any], None]) -> None:
        self._update, self._left = update, _MOST_BYTES

    def write(self, data: Any) -> int:
        """Take it in."""
        size = memoryview(data).nbytes
        self._update(data)
        self._left -= size
        if self._left < 0:
            raise _Enough
        return size


class _Pickler(pickle.Pickler):
    """Takes tensors and arrays by their kind and first numbers: a map of 100 GB is not read for this."""

    def reducer_override(self, value: Any) -> Any:
        """A text in place of the numbers."""
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            first = value.flat[: _BLOCK_BYTES // max(1, value.itemsize)]
            return str, (f"{value.dtype} {value.shape} {hashlib.sha256(first.tobytes()).hexdigest()}",)
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        told = f"{value.dtype} {list(value.shape)}"
        if value.layout is torch.strided and value.device.type == "cpu" and value.is_contiguous():
            plain = value.detach().view(-1)[: _BLOCK_BYTES // max(1, value.itemsize)]
            told += hashlib.sha256(plain.view(torch.uint8).numpy().data).hexdigest() if plain.numel() else ""
        return str, (told,)
