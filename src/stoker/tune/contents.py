"""What a batch holds as a number, and what a sampler gives as a list, so that two runs can be compared.

Addresses are no part of it: an object is what it holds, and not where it lies. Pure.
"""

import re
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from stoker.feed.sample_digest import digest

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_NAMED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def checksum(batch: Any) -> int:
    """Of all that a batch holds.

    >>> checksum({"x": np.arange(2000)}) == checksum({"x": np.arange(2000)})
    True
    """
    found = 0
    for piece in _pieces(batch, set()):
        found = zlib.crc32(piece, found)
    return found


def numbers(index: Any) -> list[Any]:
    """What a sampler gives for a batch, flat: numbers or names, or of anything else a checksum.

    >>> numbers(np.array([3, 1])), numbers([(0, 32), (5, 64)]), numbers(["a", "b"]), numbers(None)
    ([3, 1], [0, 32, 5, 64], ['a', 'b'], [])
    """
    many = index if isinstance(index, (list, tuple)) else [index]
    given = [one for one in many if one is not None]
    try:
        found = np.asarray(given)
    except (TypeError, ValueError):  # a tensor on a card, or lists of several lengths
        return [checksum(given)]
    return found.ravel().tolist() if found.dtype.kind in "biufU" else [checksum(given)]


def _pieces(value: Any, outer: set[int]) -> Iterator[bytes]:
    """`outer` are those that it is in, by identity: one that holds itself is gone through once."""
    if id(value) in outer:
        return
    if (known := _digest(value)) is not None:
        yield known
        return
    outer.add(id(value))
    inner = _inner(value)
    if inner is None:
        yield _ADDRESS.sub("", repr(value)).encode()
    else:
        for name, one in inner:
            yield name.encode()
            yield from _pieces(one, outer)
    outer.discard(id(value))


def _digest(value: Any) -> bytes | None:
    """Of what has bits of its own."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return None
        plain = value if value.layout is torch.strided else value.to_dense()
        return digest(plain.dequantize() if plain.is_quantized else plain)
    is_array = isinstance(value, np.ndarray) and not value.dtype.hasobject
    return digest(value) if is_array or isinstance(value, (str, bytes, bytearray, float)) else None


def _inner(value: Any) -> Iterator[tuple[str, Any]] | None:
    """What it is made of, by name; None where that is nothing."""
    if isinstance(value, _NAMED):
        return None
    if isinstance(value, Mapping):
        return ((str(checksum(key)), one) for key, one in value.items())
    if isinstance(value, torch.Tensor):
        return (("", one) for one in value.unbind())
    if isinstance(value, (set, frozenset)):  # whose own order is another in every run
        return (("", one) for one in sorted(checksum(one) for one in value))
    if isinstance(value, np.ndarray):
        return (("", one) for one in value.ravel().tolist())
    if isinstance(value, (list, tuple)):
        return (("", one) for one in value)
    if not isinstance(value, np.generic) and hasattr(type(value), "__array_interface__"):  # an image
        return iter([("", np.asarray(value))])
    held = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
    held.update(getattr(value, "__dict__", {}))
    return iter(held.items()) if held else None


def _slots(kind: type) -> list[str]:
    named = [vars(one).get("__slots__", ()) for one in kind.__mro__]
    return [name for names in named for name in ([names] if isinstance(names, str) else names)]
