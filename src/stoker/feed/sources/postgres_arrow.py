"""Arrow's record batches and ours: parameters bound on the way there, views of buffers on the way back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.sources.base import Indices
from stoker.feed.sources.columns import Array, Bytes, Cells, Field
from stoker.feed.sources.database import Block, Plan, key_array, key_values

# Arrays come in the server's binary form (array_send) and are taken apart here, all rows at once: the driver
# walks from element to element, 2.1 s of CPU for 100,000 rows of 448 floats against 0.4 s.
ELEMENTS = {
    "_int2": ">i2",
    "_int4": ">i4",
    "_int8": ">i8",
    "_float4": ">f4",
    "_float8": ">f8",
    "_numeric": ">f8",
    "_bool": "?",
}


def bound(parameters: Sequence[Any], *more: Any) -> Any:
    """Parameters as the one row of a record batch; None if there are none."""
    import pyarrow

    if not parameters and not more:
        return None
    try:
        columns = [pyarrow.array([value]) for value in parameters]
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
        raise UsageError(f"one of the parameters {tuple(parameters)!r} is no value that SQL knows") from error
    columns += more
    return pyarrow.record_batch(columns, names=[str(number) for number in range(len(columns))])


def block(plan: Plan, batch: Any) -> Block:
    """A record batch as a block."""
    columns = {field.name: batch.column(at) for at, field in enumerate(plan.fields)}
    keys = key_column(columns[plan.key])
    return keys, [_cells(columns[field.name], field, keys) for field in plan.fields]


def key_column(column: Any) -> Array:
    """Keys of Arrow as an array of ours."""
    return key_array(column.to_pylist()) if str(column.type) == "string" else column.to_numpy()


def _cells(column: Any, field: Field, keys: Array) -> Cells:
    """A column of Arrow as a view of its buffers."""
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if field.kind in ("bytes", "array"):
        _, ends, held = column.buffers()
        offsets = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset)
        data = np.frombuffer(held, np.uint8)[: offsets[-1]] if held else np.empty(0, np.uint8)
        if field.kind == "array":
            return _elements(data, offsets.astype(np.int64), field, keys, missing)
        return Cells(values=data[offsets[0] :], lengths=offsets[1:] - offsets[:-1], missing=missing)
    if field.kind == "time":
        column = column.cast("int64")
    if missing is not None:
        column = column.fill_null("" if field.kind == "text" else False if field.kind == "boolean" else 0)
    if field.kind == "text":
        return Cells(values=column.to_pylist(), missing=missing)
    return Cells(values=column.to_numpy(zero_copy_only=False), missing=missing)


def _elements(
    data: Bytes, offsets: Indices, field: Field, keys: Array, missing: NDArray[np.bool_] | None
) -> Cells:
    """Arrays in PostgreSQL's own binary form, as the elements of all of them.

    Big-endian: how many dimensions, whether there may be NULLs, the type; a length and a lower bound for each
    dimension; then each element after its length in bytes.
    """
    element = np.dtype([("bytes", ">i4"), ("value", ELEMENTS[field.type_name])])
    there = np.ones(len(keys), np.bool_) if missing is None else ~missing
    starts, sizes = offsets[:-1][there], np.diff(offsets)[there]
    heads = data[starts[:, None] + np.arange(8)].view(">i4")
    headers = 12 + 8 * heads[:, 0].astype(np.int64)
    counts = (sizes - headers) // element.itemsize
    for row in np.flatnonzero(heads[:, 1]).tolist():
        dimensions = data[starts[row] + 12 : starts[row] + headers[row]].view(">i4")[::2]
        if np.prod(dimensions) != counts[row]:
            raise SourceBroken(
                f"column {field.name!r} has a NULL inside the array in the row with the key "
                f"{key_values(keys[there])[row]}. Leave such rows out in the query, or put a value there."
            )
    native = element["value"].newbyteorder("=")
    if not counts.any():
        values = np.empty(0, native)
    elif (sizes == sizes[0]).all() and (headers == headers[0]).all():
        rows = data[starts[0] : starts[0] + sizes.sum()].reshape(len(starts), -1)
        values = rows[:, headers[0] :].view(element)["value"].astype(native).reshape(-1)
    else:
        places = zip((starts + headers).tolist(), (starts + sizes).tolist(), strict=True)
        parts = [data[first:last].view(element)["value"] for first, last in places]
        values = np.concatenate(parts).astype(native)
    lengths = np.zeros(len(keys), np.int64)
    lengths[there] = counts
    return Cells(values=values, lengths=lengths, missing=missing)
