"""What is known of each sample beside its values: labels, places, names.

Two forms. A `.npy` file has one row a sample, in the order of the source, and gives one column, named like
the file. A `.json` file holds an object; each name in it gives a column:

    {"label": [0, 1, 1, 0],                               a list: one value a sample
     "pass": {"a.npy": "ascending", "b.npy": "descending"}}   an object: one value a shard, by its name

Numbers, booleans and equal lists of them become tensors, as default_collate would make them; text a list.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.sources.npy_file import read_header, torch_dtype

Columns: TypeAlias = dict[str, NDArray[Any] | list[Any]]


def read_metadata(path: Path, shards: dict[str, int]) -> Columns:
    """The columns of a file, one value a sample each, for shards of these names and lengths."""
    if not path.is_file():
        raise UsageError(
            f"no metadata file {path}: give a .json or .npy file, from the shards' folder if relative"
        )
    samples = sum(shards.values())
    if path.suffix == ".npy":
        return {path.stem: _read_rows(path, samples)}
    try:
        told = json.loads(path.read_text())
    except ValueError as error:
        raise SourceBroken(f"{path} is neither .npy nor JSON: {error}; mend it, or write it anew") from error
    if not isinstance(told, dict):
        raise SourceBroken(
            f'{path} holds a {type(told).__name__}; an object of names is needed, e.g. {{"label": [0, 1]}}'
        )
    return {name: _column(values, shards, f"{name!r} in {path}") for name, values in told.items()}


def _read_rows(path: Path, samples: int) -> NDArray[Any]:
    header = read_header(path)
    torch_dtype(header.dtype, str(path))
    if header.shape[:1] != (samples,):
        raise SourceBroken(
            f"{path} has shape {header.shape}, and there are {samples} samples: one row a sample"
        )
    rows: NDArray[Any] = np.load(path, allow_pickle=False)
    return rows.astype(header.dtype.newbyteorder("="), copy=False)


def _column(values: Any, shards: dict[str, int], name: str) -> NDArray[Any] | list[Any]:
    if isinstance(values, dict):
        return _spread(values, shards, name)
    samples = sum(shards.values())
    if not isinstance(values, list) or len(values) != samples:
        count = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise SourceBroken(
            f"{name} is {count}, and there are {samples} samples: give a list of one value a sample, "
            "or an object of one value a file"
        )
    return _packed(values, name)


def _spread(values: dict[str, Any], shards: dict[str, int], name: str) -> NDArray[Any] | list[Any]:
    """One value a shard becomes one a sample."""
    absent, unknown = sorted(shards.keys() - values.keys()), sorted(values.keys() - shards.keys())
    if absent or unknown:
        wrong = f"has nothing for {absent[0]}" if absent else f"names {unknown[0]}, which is no shard"
        raise SourceBroken(f"{name} {wrong}: give one value for each of the {len(shards)} files")
    packed = _packed([values[shard] for shard in shards], name)
    lengths = list(shards.values())
    if isinstance(packed, list):
        return [value for value, length in zip(packed, lengths, strict=True) for _ in range(length)]
    return np.repeat(packed, lengths, axis=0)


def _packed(values: list[Any], name: str) -> NDArray[Any] | list[Any]:
    """An array where the values are numbers; SourceBroken where they are of different kinds."""
    if all(isinstance(value, str) for value in values):
        return values
    missing = next((number for number, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise SourceBroken(f"{name} is null at {missing}: give a value for each, e.g. -1")
    try:
        packed = np.asarray(values)
    except ValueError as error:
        raise SourceBroken(f"{name} has lists of different lengths: {error}") from error
    # Numbers among text become text in numpy without a word; so do numbers too large for 64 bits objects.
    if packed.dtype.kind not in "biuf":
        kinds = sorted({type(value).__name__ for value in values})
        raise SourceBroken(f"{name} mixes {', '.join(kinds)}: give numbers, or text, throughout")
    return packed
