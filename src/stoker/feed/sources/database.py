"""What the SQL source asks of a database; PostgreSQL and SQLite each answer it in a file of their own."""

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from stoker.errors import SourceBroken, SourceChanged
from stoker.feed.sources.columns import Array, Cells, Field

# Some rows: their keys, and their columns as they came.
Block: TypeAlias = tuple[Array, Sequence[Cells]]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked for."""

    query: str
    parameters: tuple[Any, ...] = ()
    key: str | None = None
    version: str | None = None

    @property
    def rows(self) -> str:
        """The query as a part of another one; on lines of its own, for it may end in a comment."""
        return f"(\n{self.query.rstrip().rstrip(';')}\n) AS q"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A question as a database understood it: all that a process needs in order to read by it.

    `mark` changes with the rows that the query reads; `moment` is when the database was last known to have
    that mark.
    """

    question: Question
    key: str
    key_kind: Literal["integer", "text"]
    key_type: str
    fields: tuple[Field, ...]
    tables: tuple[tuple[str, str], ...] = ()
    mark: str = ""
    moment: str = ""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What was found at the start, all in one snapshot: the plan, every key, and how many NULLs are where."""

    plan: Plan
    keys: Array
    nulls: dict[str, int] = field(default_factory=dict)


class ConnectionLost(Exception):
    """A connection that broke or could not be made, where another try may help. Never a user's to see."""


class Connection(ABC):
    """A connection of this process, for one thread at a time: hold `lock`.

    It is closed when nobody has it any more; in a forked child, never.
    """

    def __init__(self, raw: Any, errors: type[Exception]) -> None:
        self.lock = threading.RLock()
        self._raw = raw
        # Not `__del__`: in a cycle the driver's own would come first, and complain.
        self._closing = weakref.finalize(self, _close, raw, errors, os.getpid())

    def close(self) -> None:
        """Close it; a second time does nothing."""
        self._closing()

    @abstractmethod
    def open(self, question: Question) -> Opening:
        """Find out what the query gives."""

    @abstractmethod
    def fetch(self, plan: Plan, keys: Array) -> list[Block]:
        """The rows with these keys that are there, in any order; SourceChanged if the data is known to be."""

    @abstractmethod
    def stream(self, plan: Plan, *, in_order: bool, handed_on: bool) -> Generator[Block, None, None]:
        """All rows, from one snapshot, in the order of their keys or in the database's own.

        `handed_on`: another thread works with the blocks, so that fewer and larger ones are better.
        It takes no lock: the connection must be the stream's alone, and is of no use when it is left early.
        """

    @abstractmethod
    def another(self) -> "Connection":
        """A further connection to the same place, for a long read beside others."""


def _close(raw: Any, errors: type[Exception], owner: int) -> None:
    if os.getpid() != owner:
        # Closing a parent's connection in its forked child would say goodbye to the server in the parent's
        # name. One reference too many keeps the driver's destructor from running, even at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))
        return
    try:
        raw.close()
    except errors:
        pass  # it is broken already, which is mostly why it is closed


def quote(name: str) -> str:
    """A name as an identifier: nothing in it is SQL."""
    return '"' + name.replace('"', '""') + '"'


def key_array(values: Sequence[Any]) -> Array:
    """Keys in an array: whole numbers as int64, text as UTF-8 bytes, whose order is that of the bytes."""
    if values and isinstance(values[0], str):
        return np.array([value.encode() for value in values])
    return np.array(values, dtype=np.int64)


def key_values(keys: Array) -> list[Any]:
    """The keys as Python values."""
    found: list[Any] = keys.tolist()
    return [key.decode() for key in found] if keys.dtype.kind == "S" else found


def choose_key(key: str | None, names: Sequence[str]) -> str:
    """The column that tells rows apart: the first one if none is named."""
    if not names:
        raise SourceBroken("the query has no columns")
    if key is not None and key not in names:
        raise SourceBroken(f"the key is {key!r}; the query's columns are {', '.join(names)}. Select it too.")
    return names[0] if key is None else key


def changed(what: str) -> SourceChanged:
    """The error for data that is not what it was."""
    return SourceChanged(
        f"the rows of the query changed since it was opened: {what}. Open the source anew, or keep what you "
        "train on from changing: a copy of the table, or a query that leaves out what still changes, with "
        "version=… to say how to tell."
    )
