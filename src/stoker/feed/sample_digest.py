"""What a sample is made of: where each value stands in it, of what kind it is, and a digest of its bits."""

import hashlib
import pickle
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def walk(sample: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a sample and where they stand: in dicts, tuples, namedtuples and lists, nested.

    >>> list(walk({"image": 1, "boxes": [2, (3, 4)]}))
    [('image', 1), ('boxes[0]', 2), ('boxes[1][0]', 3), ('boxes[1][1]', 4)]
    """
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from walk(value, f"{path}.{key}" if path else str(key))
    elif isinstance(sample, tuple) and hasattr(sample, "_fields"):
        for key, value in zip(sample._fields, sample, strict=True):
            yield from walk(value, f"{path}.{key}" if path else str(key))
    elif isinstance(sample, (tuple, list)):
        for number, value in enumerate(sample):
            yield from walk(value, f"{path}[{number}]")
    else:
        yield path or "the sample", sample


def describe(value: Any) -> str:
    """The kind of a value: its type, with the shape where it has one."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__


def digest(value: Any) -> bytes:
    """Of the kind and every bit, so that NaN equals itself and 0.0 is not -0.0.

    TypeError for a value that neither has known bits nor can be pickled.
    """
    hashed = hashlib.blake2b(describe(value).encode(), digest_size=16)
    hashed.update(b"\0")
    hashed.update(_bits(value))
    return hashed.digest()


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        plain = value.detach().resolve_conj().resolve_neg().cpu()
        return plain.reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, (set, frozenset)):
        return b"".join(sorted(digest(item) for item in value))  # a set's own order is no part of it
    try:
        return pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(f"a {type(value).__qualname__} has no bits to compare: {error}") from error
