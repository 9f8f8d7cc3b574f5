"""What the columns of a query become: tensors with a row a sample, or lists of text.

A database hands rows over as `Cells`, one for each column: flat values as they came, without a loop over
rows. `Layout` knows what each column shall be, checks that it is that, and gives its rows as bytes, so that
putting them into their places is one copy whatever their type.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.sources.base import Indices

Kind: TypeAlias = Literal["integer", "float", "boolean", "time", "text", "bytes", "array"]
Array: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]
Batch: TypeAlias = dict[str, Any]
# Columns by name, as bytes with a row a sample, or as texts.
Rows: TypeAlias = dict[str, NDArray[np.uint8] | list[str]]
# Where in a batch rows belong.
Places: TypeAlias = slice | Indices
Nulls: TypeAlias = Literal["refuse"] | Mapping[str, Any]

# What a column is when nobody says otherwise. A label as int64 is what losses and embeddings ask for.
_DEFAULT: dict[Kind, torch.dtype] = {
    "integer": torch.int64,
    "float": torch.float64,
    "boolean": torch.bool,
    "time": torch.int64,
    "text": torch.uint8,
    "bytes": torch.uint8,
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column of a query shall become.

    >>> Column(dtype=torch.float32, shape=(7, 64))
    Column(dtype=torch.float32, shape=(7, 64))

    Args:
        dtype: of the tensor. Bytes are taken as the memory of such an array, in this machine's byte order;
            numbers are converted.
        shape: of one sample, for bytes and arrays. Without it they are as long as in the first row.
    """

    dtype: torch.dtype | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Field:
    """A column as the database describes it; `shape` is that of the first row that has a value."""

    name: str
    kind: Kind
    type_name: str
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Cells:
    """One column of some rows, as it came.

    `values` has an entry a row. For bytes and arrays it has the elements of all rows one after another, those
    of NULL taking no room, and `lengths` says how many belong to each row.
    """

    values: Array | list[str]
    lengths: NDArray[np.int64] | None = None
    missing: NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What a column becomes. `fill` is what stands for NULL: a row of bytes, or a text; None refuses it."""

    name: str
    kind: Kind
    dtype: torch.dtype
    shape: tuple[int, ...]
    fill: Bytes | str | None
    mask: str | None


class Layout:
    """The columns of a batch: their names, types and shapes, and what NULL becomes."""

    def __init__(self, fields: Sequence[Field], columns: Mapping[str, Column], nulls: Nulls) -> None:
        names = [field.name for field in fields]
        fills = _checked_nulls(nulls)
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"the query has two columns {name!r}. Name them apart: SELECT a AS b")
            if fills.get(name) == "mask" and f"{name}_mask" in names:
                raise UsageError(f"the mask of {name!r} and another column would both be {name}_mask")
        for argument, given in (("columns", columns), ("nulls", fills)):
            for name in given:
                if name not in names:
                    raise UsageError(f"{argument} names {name!r}; the query's columns are {', '.join(names)}")
        self._targets = tuple(_resolve(field, columns.get(field.name, Column()), fills) for field in fields)

    def __str__(self) -> str:
        return ", ".join(f"{target.name} {_told(target)}" for target in self._targets)

    @property
    def refusing(self) -> tuple[str, ...]:
        """The columns in which no NULL is allowed."""
        return tuple(target.name for target in self._targets if target.fill is None)

    def allocate(self, rows: int) -> Batch:
        """A batch of so many rows, with nothing in them yet."""
        batch: Batch = {}
        for target in self._targets:
            if target.kind == "text":
                batch[target.name] = [""] * rows
            else:
                batch[target.name] = _empty((rows, *target.shape), target.dtype)
            if target.mask is not None:
                batch[target.mask] = _empty((rows,), torch.bool)
        return batch

    def rows(self, cells: Sequence[Cells], keys: Array) -> Rows:
        """The columns of a batch from what came, checked; keys are for naming the row at fault."""
        rows: Rows = {}
        for target, column in zip(self._targets, cells, strict=True):
            missing = column.missing
            if missing is not None and target.fill is None:
                raise SourceBroken(
                    f"column {target.name!r} is NULL in {missing.sum()} of {len(missing)} rows read, "
                    f"first in the row with the key {_key(keys, missing)}. {NULLS_ADVICE}"
                )
            if isinstance(column.values, list):
                rows[target.name] = _filled_texts(target, column.values, missing)
            else:
                rows[target.name] = _filled(target, _as_bytes(target, column, column.values, keys), missing)
            if target.mask is not None:
                there = np.ones(len(keys), np.bool_) if missing is None else ~missing
                rows[target.mask] = there.view(np.uint8).reshape(-1, 1)
        return rows


def memory_of(batch: Batch) -> Rows:
    """A batch's columns as rows: what is written there is in the batch."""
    return {name: column if isinstance(column, list) else _memory(column) for name, column in batch.items()}


def put(memory: Rows, places: Places, rows: Rows) -> None:
    """Write rows into their places in a batch's memory; into a slice it is one copy of them all."""
    for name, column in rows.items():
        held: Any = memory[name]
        if isinstance(held, np.ndarray) or isinstance(places, slice):
            held[places] = column
        else:
            for place, text in zip(places.tolist(), column, strict=True):
                held[place] = text


def take(memory: Rows, chosen: Indices, rows: Rows) -> None:
    """Fill a batch's memory with the chosen rows, in that order; a row may be chosen twice."""
    for name, column in rows.items():
        held = memory[name]
        if isinstance(column, np.ndarray) and isinstance(held, np.ndarray):
            # "clip" only because "raise" copies through a buffer; the numbers are our own.
            np.take(column, chosen, axis=0, out=held, mode="clip")
        else:
            held[:] = [column[row] for row in chosen.tolist()]


def cut(rows: Rows, part: Places) -> Rows:
    """Some of the rows."""
    return {name: _some(column, part) for name, column in rows.items()}


def _some(column: Bytes | list[str], part: Places) -> Bytes | list[str]:
    if isinstance(column, np.ndarray):
        return column[part]
    return column[part] if isinstance(part, slice) else [column[at] for at in part.tolist()]


def join(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(columns: Sequence[Any]) -> Bytes | list[str]:
    if isinstance(columns[0], list):
        return [text for column in columns for text in column]
    joined: Bytes = np.concatenate(columns)
    return joined


NULLS_ADVICE = "Leave such rows out in the query, or say what they become: nulls={column: 'mask' or a value}."


def _checked_nulls(nulls: Nulls) -> Mapping[str, Any]:
    if isinstance(nulls, Mapping):
        return nulls
    if nulls != "refuse":
        raise UsageError(f"nulls is {nulls!r}: give 'refuse', or {{column: 'mask' or a value}}")
    return {}


def _resolve(field: Field, asked: Column, fills: Mapping[str, Any]) -> _Target:
    text, many = field.kind == "text", field.kind in ("bytes", "array")
    if (text and asked.dtype is not None) or (not many and asked.shape is not None):
        raise UsageError(
            f"column {field.name!r} is {field.type_name}, which becomes "
            f"{'a list of str' if text else 'one value a row'}: it cannot be {asked}"
        )
    dtype = asked.dtype or field.dtype or _DEFAULT[field.kind]
    fractional = field.kind == "float" or (field.dtype is not None and field.dtype.is_floating_point)
    if fractional and not dtype.is_floating_point:
        raise UsageError(
            f"column {field.name!r} is {field.type_name} and would lose its fractions as {dtype}. "
            "Round it in the query if that is meant."
        )
    shape = (asked.shape if asked.shape is not None else _first_shape(field, dtype)) if many else ()
    fill, mask = None, None
    if field.name in fills:
        given = fills[field.name]
        masked = isinstance(given, str) and given == "mask"
        mask = f"{field.name}_mask" if masked else None
        fill = _fill(field, shape, dtype, ("" if text else 0) if masked else given)
    return _Target(name=field.name, kind=field.kind, dtype=dtype, shape=shape, fill=fill, mask=mask)


def _first_shape(field: Field, dtype: torch.dtype) -> tuple[int, ...]:
    if field.kind == "array":
        return field.shape
    size, rest = divmod(math.prod(field.shape), dtype.itemsize)
    if rest:
        raise UsageError(
            f"column {field.name!r} has {math.prod(field.shape)} bytes in its first row: no multiple of the "
            f"{dtype.itemsize} of {dtype}"
        )
    return (size,)


def _fill(field: Field, shape: tuple[int, ...], dtype: torch.dtype, value: Any) -> Bytes | str:
    if field.kind == "text" and isinstance(value, str):
        return value
    if field.kind != "text" and isinstance(value, (bool, int, float)):
        try:
            row = torch.full((1, *shape), value, dtype=dtype)
        except (RuntimeError, OverflowError):
            row = None
        if row is not None and (dtype.is_floating_point or bool((row == value).all())):
            fill: Bytes = _memory(row)[0]
            return fill
    raise UsageError(
        f"nulls gives {value!r} for {field.name!r}, which is no value of "
        f"{'text' if field.kind == 'text' else dtype}. "
        "Give one, or 'mask'."
    )


def _as_bytes(target: _Target, column: Cells, values: Array, keys: Array) -> Bytes:
    """The rows that are there, as bytes: a view of what came wherever that is possible."""
    missing = column.missing
    if column.lengths is not None:
        rows = _even(target, column.lengths, values, keys, missing)
    else:
        rows = (values if missing is None else values[~missing]).reshape(-1, 1)
    if target.kind == "bytes":
        return rows
    wanted = _numpy_dtype(target.dtype)
    if rows.dtype != wanted:
        _check_range(target, rows)
        # torch asks for memory that may be written, and numpy has no bfloat16.
        return _memory(torch.from_numpy(rows.copy()).to(target.dtype))
    return np.ascontiguousarray(rows).view(np.uint8)


def _even(
    target: _Target,
    lengths: NDArray[np.int64],
    values: Array,
    keys: Array,
    missing: NDArray[np.bool_] | None,
) -> Array:
    """Elements one after another as rows of equal length."""
    wanted = math.prod(target.shape) * (target.dtype.itemsize if target.kind == "bytes" else 1)
    wrong = lengths != wanted
    if missing is not None:
        wrong &= ~missing
    if wrong.any():
        unit = "bytes" if target.kind == "bytes" else "elements"
        raise SourceBroken(
            f"column {target.name!r} has {lengths[wrong.argmax()]} {unit} in the row with the key "
            f"{_key(keys, wrong)}, where {_told(target)} takes {wanted}. All rows must be of one size: "
            "pad them in the query, leave the odd ones out, or give the shape that most have by columns=…"
        )
    rows = len(lengths) if missing is None else int((~missing).sum())
    return values.reshape(rows, wanted)


def _filled_texts(target: _Target, texts: list[str], missing: NDArray[np.bool_] | None) -> list[str]:
    if missing is None:
        return texts
    fill = str(target.fill)
    return [fill if gone else text for text, gone in zip(texts, missing.tolist(), strict=True)]


def _filled(target: _Target, rows: Bytes, missing: NDArray[np.bool_] | None) -> Bytes:
    if missing is None:
        return rows
    full = np.empty((len(missing), rows.shape[1]), np.uint8)
    full[~missing] = rows
    full[missing] = np.asarray(target.fill)
    return full


def _check_range(target: _Target, rows: Array) -> None:
    """No number may turn into another one by its type."""
    if rows.size == 0 or target.dtype.is_floating_point or rows.dtype.kind not in "iu":
        return
    info = None if target.dtype == torch.bool else torch.iinfo(target.dtype)
    low, high = (0, 1) if info is None else (info.min, info.max)
    for value in (int(rows.min()), int(rows.max())):
        if not low <= value <= high:
            raise SourceBroken(f"column {target.name!r} has {value}: {target.dtype} is {low} to {high}")


@cache
def _numpy_dtype(dtype: torch.dtype) -> Any:
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:  # bfloat16 and the 8-bit floats
        return None


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in memory of numpy's, which asks the kernel for huge pages where there is much of it.

    torch does not, and then the first touch of 180 MB is 44,000 page faults: 80 ms of the kernel's time where
    a server sends these bytes in 140.
    """
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(memory).view(dtype).reshape(shape)


def _memory(tensor: torch.Tensor) -> Bytes:
    """A tensor's rows as bytes: its own memory."""
    width = math.prod(tensor.shape[1:])
    if not tensor.numel():
        return np.empty((len(tensor), width * tensor.itemsize), np.uint8)
    rows: Bytes = tensor.reshape(len(tensor), width).view(torch.uint8).numpy()
    return rows


def _key(keys: Array, which: NDArray[np.bool_]) -> str:
    found = keys[int(which.argmax())]
    return repr(found.decode()) if isinstance(found, bytes) else str(found)


def _told(target: _Target) -> str:
    if target.kind == "text":
        return "text"
    return f"{str(target.dtype).removeprefix('torch.')}{list(target.shape) if target.shape else ''}"
