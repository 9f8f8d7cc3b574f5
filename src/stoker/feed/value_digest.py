"""A digest of what a value is made of: what its objects hold, and the text or the code of what they run.

The same in another process and another run, as far as the value can be pickled. Of large arrays only the
first numbers are looked at.
"""

import hashlib
import inspect
import pickle
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

# Of each large block of numbers, and of everything else together: a list of a million paths takes 0.1 GB.
_BLOCK_BYTES = 1 << 20
_MOST_BYTES = 256 << 20


def code_digest(function: Callable[..., Any]) -> str:
    """Of a function's code and what is bound in it, be it a closure, a partial, a method or an object."""
    hashed = hashlib.sha256()
    take_in(hashed.update, function)
    return hashed.hexdigest()


def take_in(update: Callable[[bytes], None], value: Any) -> None:
    """Have `update` called with the bytes that tell this value from another."""
    try:
        _Pickler(_Hashing(update), protocol=4).dump(value)
    except _Enough:
        pass  # what comes after so much is not looked at
    except Exception as error:  # noqa: BLE001  # an object's own way to be pickled may raise anything
        # Locks, open files: as far as it got, and what it came to.
        update(type(error).__name__.encode())


@lru_cache
def class_text(kind: type) -> str:
    """The text of a class as it was written, or its name where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


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
    """Writes what nothing is to be made of again: numbers by their first ones, functions by their code."""

    def __init__(self, file: _Hashing, protocol: int) -> None:
        super().__init__(file, protocol)
        self._under_way: set[int] = set()

    def persistent_id(self, value: Any) -> Any:
        """A set by what is in it: its own order is another in each process."""
        if type(value) not in (set, frozenset):
            return None
        return "set", sorted(_digest(item) for item in value)

    def reducer_override(self, value: Any) -> Any:
        """A text in place of numbers; the code in place of a function, whose name alone would be written."""
        if isinstance(value, FunctionType):
            return self._told_function(value)
        if isinstance(value, CodeType):
            return tuple, ((value.co_name, value.co_code, value.co_names, value.co_consts),)
        if isinstance(value, type) and value.__module__ != "builtins":
            return str, ("\0".join(map(class_text, value.__mro__)),)
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

    def _told_function(self, function: FunctionType) -> Any:
        if id(function) in self._under_way:  # it refers to itself
            return str, (function.__qualname__,)
        self._under_way.add(id(function))
        cells = [cell.cell_contents if _is_filled(cell) else None for cell in function.__closure__ or ()]
        told = (function.__code__, function.__defaults__, function.__kwdefaults__, cells)
        return tuple, ((function.__module__, *told),)


def _digest(value: Any) -> bytes:
    hashed = hashlib.sha256()
    take_in(hashed.update, value)
    return hashed.digest()


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # empty until the function around it gets so far
    except ValueError:
        return False
    return True
