"""Arrow's record batches and ours: parameters bound on the way there, views of buffers on the way back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.errors import SourceBroken, UsageError
from stoker.feed.sources.columns import Array, Cells, Field
from stoker.feed.sources.database import Block, Plan, key_array, key_values


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
    """A record batch, the key first, as a block."""
    keys = key_column(batch.column(0))
    return keys, [_cells(batch.column(at + 1), field, keys) for at, field in enumerate(plan.fields)]


def key_column(column: Any) -> Array:
    """Keys of Arrow as an array of ours."""
    return key_array(column.to_pylist()) if str(column.type) == "string" else column.to_numpy()


def _cells(column: Any, field: Field, keys: Array) -> Cells:
    """A column of Arrow as a view of its buffers."""
    import pyarrow

    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if field.kind == "bytes":
        _, ends, held = column.buffers()
        offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        data = np.frombuffer(held, np.uint8)[offsets[0] : offsets[-1]] if held else np.empty(0, np.uint8)
        return Cells(values=data, lengths=np.diff(offsets).astype(np.int64), missing=missing)
    if field.kind == "array":
        offsets = column.offsets.to_numpy()
        values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        if values.null_count:
            hole = int(values.is_null().to_numpy(zero_copy_only=False).argmax()) + int(offsets[0])
            row = int(np.searchsorted(offsets, hole, side="right")) - 1
            raise SourceBroken(
                f"column {field.name!r} has a NULL inside the array in the row with the key "
                f"{key_values(keys)[row]}. Leave such rows out in the query, or put a value there."
            )
        elements = values.to_numpy(zero_copy_only=False)
        return Cells(values=elements, lengths=np.diff(offsets).astype(np.int64), missing=missing)
    if field.kind == "time":
        column = column.cast(pyarrow.int64())
    if missing is not None:
        column = column.fill_null("" if field.kind == "text" else False if field.kind == "boolean" else 0)
    if field.kind == "text":
        return Cells(values=column.to_pylist(), missing=missing)
    return Cells(values=column.to_numpy(zero_copy_only=False), missing=missing)
