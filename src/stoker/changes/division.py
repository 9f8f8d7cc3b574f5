"""A batch divided into parts along its samples. Pure.

Tensors and arrays are divided along their first dimension, sequences with an entry a sample by their entries;
what stands for the whole batch (a number, a word, a scalar tensor) is in every part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import torch


class Indivisible(ValueError):
    """A batch of which it cannot be told what belongs to which sample; the message says why."""


def divide(batch: Any, most: int, batch_size: int | None = None) -> list[tuple[Any, int]]:
    """Parts of at most so many samples, each with its number of samples.

    `batch_size` is what the loader says; it is needed only where all is a sequence of tensors, which may be
    the fields of a batch or its samples.
    """
    seen = _Seen.of(batch)
    rows = seen.rows(batch_size)
    if rows <= most:
        return [(batch, rows)]
    # As even as can be: a last part of one sample would be slow, and BatchNorm refuses it.
    number = ceil(rows / most)
    ends = [rows * at // number for at in range(number + 1)]
    spans = [_Span(rows, start, stop, seen.by_sample) for start, stop in pairwise(ends)]
    return [(span.cut(batch), span.stop - span.start) for span in spans]


@dataclass(frozen=True)
class _Span:
    """Some samples of a batch. `by_sample`: its sequences of tensors hold samples, not fields."""

    rows: int
    start: int
    stop: int
    by_sample: bool

    def cut(self, value: Any) -> Any:
        """These samples of it."""
        if _is_table(value):
            if len(value) != self.rows:
                raise Indivisible(
                    f"it holds {self.rows} samples, and a tensor of {len(value)} rows beside them"
                )
            return value[self.start : self.stop]
        if _is_record(value):
            return replace(value, **{one.name: self.cut(getattr(value, one.name)) for one in fields(value)})
        if isinstance(value, Mapping):
            return _like(value, {name: self.cut(inner) for name, inner in value.items()})
        if _is_sequence(value):
            whole = hasattr(value, "_fields") or (not self.by_sample and self._are_fields(value))
            if len(value) == self.rows and not whole:
                return _like(value, value[self.start : self.stop])
            return _like(value, [self.cut(inner) for inner in value])
        return value

    def _are_fields(self, value: Sequence[Any]) -> bool:
        return all(_is_table(inner) and len(inner) == self.rows for inner in value)


@dataclass
class _Seen:
    """What is in a batch: rows of tables, entries of sequences of other things, sequences of tables alone.

    The last are the fields of a batch, or its samples.
    """

    tables: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    unsure: list[Sequence[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Any) -> "_Seen":
        """All that is in a batch."""
        seen = cls()
        seen._look(batch)
        return seen

    @property
    def by_sample(self) -> bool:
        """Three images of three channels beside three targets: samples, as nothing else is a table."""
        return not self.tables and bool(self.entries)

    def rows(self, batch_size: int | None) -> int:
        """How many samples there are."""
        found = set(self.tables) or set(self.entries) or {_rows_of(one, batch_size) for one in self.unsure}
        if not found:
            raise Indivisible("it holds no tensor, and no sequence with an entry a sample")
        if len(found) > 1:
            told = " and ".join(str(one) for one in sorted(found))
            raise Indivisible(f"it holds things of {told} rows: which are its samples is not known")
        return found.pop()

    def _look(self, value: Any) -> None:
        if _is_table(value):
            self.tables.append(len(value))
        elif _is_sequence(value):
            self._look_at_sequence(value)
        elif isinstance(value, Mapping) or _is_record(value):
            for inner in _values(value):
                self._look(inner)
        elif not _is_plain(value):
            raise Indivisible(f"it holds a {type(value).__module__}.{type(value).__qualname__}")

    def _look_at_sequence(self, value: Sequence[Any]) -> None:
        if not value:
            return
        if hasattr(value, "_fields"):
            for inner in value:
                self._look(inner)
        elif all(_is_table(inner) for inner in value):
            self.unsure.append(value)
        elif all(_is_plain(inner) or isinstance(inner, Mapping) for inner in value):
            self.entries.append(len(value))
        else:
            for inner in value:
                self._look(inner)


def _rows_of(tensors: Sequence[Any], batch_size: int | None) -> int:
    """Fields of as many rows each, as torch's own collate gives them, unless their number is the batch's."""
    lengths = {len(one) for one in tensors}
    if len(lengths) > 1 or (len(tensors) == batch_size and lengths != {batch_size}):
        return len(tensors)
    return lengths.pop()


def _is_table(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim > 0


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    else:
        yield from (getattr(value, one.name) for one in fields(value))


def _is_plain(value: Any) -> bool:
    scalar = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 0
    return scalar or value is None or isinstance(value, (str, bytes, int, float, complex, np.generic))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _like(value: Any, content: Any) -> Any:
    kind: Any = type(value)
    if hasattr(value, "_fields"):  # a named tuple takes its fields one by one
        return kind(*content)
    return kind(content)
