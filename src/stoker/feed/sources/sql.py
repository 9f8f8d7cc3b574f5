"""Samples from the rows of a query: PostgreSQL, or SQLite in a file. A row is a sample, its columns a dict.

    source = SqlSource(
        "postgresql://reader@db/radio",                      # or env:NAME, sqlite:///file.db
        "SELECT id, iq, site FROM captures WHERE day < $1",
        parameters=(date(2026, 1, 1),),
        columns={"iq": Column(dtype=torch.float32, shape=(7, 64))},
    )

The keys are read once, and tell which sample is which: sample 0 is the row with the smallest. A batch is
read by its keys in one statement; `scan` and `read_all` read everything by one.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stoker.errors import DatabaseUnreachable, SourceBroken, UsageError
from stoker.facts.secrets import hide_password
from stoker.feed.arguments import checked_text
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices, Source, checked, told_apart
from stoker.feed.sources.columns import (
    NULLS_ADVICE,
    Array,
    Batch,
    Column,
    Layout,
    Nulls,
    Places,
    Rows,
    cut,
    join,
    memory_of,
    put,
    take,
)
from stoker.feed.sources.database import Connection, ConnectionLost, Plan, Question, changed, key_values
from stoker.feed.sources.read_ahead import read_ahead
from stoker.feed.sources.ready_memory import readied

__all__ = ["Column", "SqlSource", "find_url", "hide_password"]

T = TypeVar("T")
_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_FIRST_PAUSE_S = 0.1
# Blocks of about 512 KB that wait for who works with a scan's batches, so that the server is kept busy.
_AHEAD = 8


class SqlSource(Source):
    """The rows of a query, in the order of their key.

    Whole numbers become int64; float4 float32; float8, SQLite's REAL and numeric float64 (numeric may have
    more digits than that); booleans bool; times and dates microseconds since 1970 as int64 (in UTC where the
    type has a zone); arrays tensors of their elements; bytes uint8, or what `columns` says. Text, uuid and
    json are lists of str.

    Connections belong to a process: none is inherited or pickled. What is pickled is the URL as given, with
    any password in it: `env:NAME`, a service file (`postgresql:///?service=name`) or a password file keep it
    out. What the query reads may not change while the source is in use: see `postgres.py` and `sqlite.py` for
    how that is noticed.

    Args:
        url: `postgresql://user@host/database`, `sqlite:///file` (`sqlite:////from/the/root`), or `env:NAME`
            for a variable that has one of these, looked up by each process.
        query: one SELECT, which becomes part of larger ones. Its parameters are $1, $2, …
        parameters: their values, bound by the database and never pasted into the text.
        key: the column that tells rows apart, without NULL and without a value twice; best a primary key. The
            first column if not given.
        columns: what columns become, where that is not what is said above.
        nulls: "refuse", or for each column in which NULL may be: a value in its place, or "mask" for zeros
            (empty text) and a column `<name>_mask` that is true where there is a value.
        version: a query without parameters whose answer changes when the rows do, in place of a pass over all
            tables: for those that are very large, or to which others add what the query leaves out.
        timeout_s: how long one statement may take.
        retries: how often a lost connection is made anew, with growing pauses, before that is an error.
    """

    def __init__(
        self,
        url: str,
        query: str,
        *,
        parameters: Sequence[Any] = (),
        key: str | None = None,
        columns: Mapping[str, Column] | None = None,
        nulls: Nulls = "refuse",
        version: str | None = None,
        timeout_s: float | None = None,
        retries: int = 5,
    ) -> None:
        checked_text("url", url, "postgresql://user@host/database, sqlite:///file or env:NAME")
        checked_text("query", query, "one SELECT")
        if isinstance(parameters, (str, bytes)):
            raise UsageError(
                f"parameters is {parameters!r}: give a tuple of values, ({parameters!r},) for one"
            )
        if retries < 0 or (timeout_s is not None and timeout_s <= 0):
            raise UsageError(f"retries is {retries} and timeout_s {timeout_s}: neither may be negative")
        self._url, self._retries = url, retries
        self._connection = PerProcess(partial(_connect, url, timeout_s))
        question = Question(query=query, parameters=tuple(parameters), key=key, version=version)
        found = self._attempt(lambda connection: connection.open(question))
        self._plan: Plan = found.plan
        self._layout = Layout(found.plan.fields, columns or {}, nulls)
        self._keys: Array = np.sort(found.keys)
        self._refuse_nulls(found.nulls)
        self._refuse_twins()
        self._fingerprint = self._digest(columns or {}, nulls)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"SqlSource({len(self)} rows of {self._layout} from {hide_password(self._url)})"

    @property
    def keys(self) -> list[Any]:
        """The key of every sample."""
        return key_values(self._keys)

    def fingerprint(self) -> str:
        """Of the query, its parameters, the keys, and the state of the tables when they were read."""
        return self._fingerprint

    def kept_as(self) -> str:
        """Of where the database is, too: a copy of another split may have all else in common."""
        url = find_url(self._url)
        if url.startswith(_SQLITE):
            url = os.path.realpath(url.removeprefix(_SQLITE))
        return told_apart(self._fingerprint, hide_password(url))

    def read(self, indices: Indices) -> Batch:
        """The batch of these samples, by one statement."""
        chosen = checked(indices, len(self))
        batch = self._layout.allocate(len(chosen))
        if not len(chosen):
            return batch
        numbers, inverse = np.unique(chosen, return_inverse=True)
        blocks = self._attempt(lambda connection: connection.fetch(self._plan, self._keys[numbers]))
        found = np.concatenate([numbers[:0], *(_numbers(self._places(keys)) for keys, _ in blocks)])
        order = np.argsort(found, kind="stable")
        if not np.array_equal(found[order], numbers):
            lacking = np.setdiff1d(numbers, found)
            told = key_values(self._keys[lacking[:3]])
            raise changed(
                f"{len(lacking)} of {len(numbers)} are gone, or there twice, first with the keys {told}"
            )
        rows = join([self._layout.rows(cells, keys) for keys, cells in blocks])
        take(memory_of(batch), order[inverse], rows)
        return batch

    def read_all(self) -> Batch:
        """Every sample in one batch, sample 0 first, by one statement and from one snapshot."""
        batch = self._layout.allocate(len(self))
        for _ in self.fill(batch):
            pass
        return batch

    def fill(self, batch: Batch) -> Iterator[Places]:
        """The same into a batch that is there, with a row for every sample; which of them are written."""
        memory = memory_of(batch)
        # By one thread: a copy is short enough for the socket's buffer to bridge it, and where the server has
        # one of two cores a second thread would wait for the first (0.86 of the rate of psql against 0.72).
        with readied(column for column in memory.values() if isinstance(column, np.ndarray)):
            for places, rows in self._blocks(in_order=False, ahead=False):
                put(memory, places, rows)
                yield places

    def scan(self, batch_rows: int = 4096, *, in_order: bool = True) -> Iterator[tuple[Indices, Batch]]:
        """All samples, each once, by one statement and from one snapshot: their numbers, and their batch.

        Only a few batches are in memory at a time. In the database's own order it goes faster than in that of
        the key (measured: twice as fast); the numbers say which samples they are.
        """
        if batch_rows < 1:
            raise UsageError(f"batch_rows is {batch_rows}: a batch has at least 1 row")
        left = len(self)
        numbers, batch, memory, filled = np.empty(0, np.int64), {}, {}, 0
        for places, rows in self._blocks(in_order=in_order, ahead=True):
            found = _numbers(places)
            begun = 0
            while begun < len(found):
                if filled == len(numbers):
                    numbers, filled = np.empty(min(batch_rows, left), np.int64), 0
                    batch = self._layout.allocate(len(numbers))
                    memory = memory_of(batch)
                count = min(len(found) - begun, len(numbers) - filled)
                part, where = slice(begun, begun + count), slice(filled, filled + count)
                numbers[where] = found[part]
                put(memory, where, cut(rows, part))
                filled, begun = filled + count, begun + count
                if filled == len(numbers):
                    left -= filled
                    yield numbers, batch

    def _blocks(self, *, in_order: bool, ahead: bool) -> Generator[tuple[Places, Rows], None, None]:
        """The rows as they come, each once; a lost connection is made anew and what was there is left out."""
        seen = np.zeros(len(self), np.bool_)
        handed = failures = 0
        while True:
            stream = self._stream(in_order, ahead)
            blocks = read_ahead(stream, _AHEAD) if ahead else stream
            try:
                for places, rows in blocks:
                    new = ~seen[places]
                    count = int(np.count_nonzero(new))
                    if count < len(new):  # the others were handed out before the connection was lost
                        places, rows = _numbers(places)[new], cut(rows, np.flatnonzero(new))
                    seen[places] = True
                    handed += count
                    if handed > len(self):
                        raise changed(f"{handed} came where there were {len(self)}")
                    if count:
                        failures = 0
                        yield places, rows
                break
            except ConnectionLost as lost:
                failures += 1
                self._pause(failures, lost)
            finally:
                blocks.close()
        if not seen.all():
            told = key_values(self._keys[~seen][:3])
            raise changed(f"{(~seen).sum()} of {len(seen)} are gone, first with the keys {told}")

    def _stream(self, in_order: bool, ahead: bool) -> Generator[tuple[Places, Rows], None, None]:
        """One statement over a connection of its own, so that others may read meanwhile."""
        connection = self._attempt(lambda connection: connection.another())
        try:
            for keys, cells in connection.stream(self._plan, in_order=in_order, handed_on=ahead):
                yield self._places(keys), self._layout.rows(cells, keys)
        finally:
            connection.close()

    def _places(self, keys: Array) -> Places:
        """Which samples these are: a slice where they are the next ones, as mostly."""
        if not len(self):
            raise changed("there were none, and now there are some")
        first = int(np.searchsorted(self._keys, keys[0])) if len(keys) else 0
        run = slice(first, first + len(keys))
        if np.array_equal(self._keys[run], keys):
            return run
        found = np.searchsorted(self._keys, keys)
        found[found == len(self)] = 0
        new = self._keys[found] != keys
        if new.any():
            raise changed(f"{new.sum()} came, first with the key {key_values(keys[new][:1])[0]!r}")
        return found.astype(np.int64)

    def _attempt(self, action: Callable[[Connection], T]) -> T:
        """Do something with this process's connection, again with a new one if it was lost."""
        failures = 0
        while True:
            try:
                connection = self._connection.get()
                with connection.lock:
                    try:
                        return action(connection)
                    except ConnectionLost:
                        # Another thread that waited for the same one may have a new one by now.
                        self._connection.drop(connection)
                        connection.close()
                        raise
            except ConnectionLost as lost:
                failures += 1
                self._pause(failures, lost)

    def _pause(self, failures: int, lost: ConnectionLost) -> None:
        if failures > self._retries:
            raise DatabaseUnreachable(
                f"no connection to {hide_password(self._url)} after {failures} tries: {lost}. "
                "Is the server running, and reachable from here?"
            ) from lost
        # Spread, so that workers that lost their connections together do not come back all at once.
        time.sleep(_FIRST_PAUSE_S * 2 ** (failures - 1) * random.uniform(0.5, 1.0))

    def _refuse_nulls(self, nulls: Mapping[str, int]) -> None:
        found = [f"{name!r} in {nulls[name]}" for name in self._layout.refusing if nulls[name]]
        if found:
            raise SourceBroken(
                f"of {len(self)} rows NULL stands in column {', '.join(found)}. {NULLS_ADVICE}"
            )

    def _refuse_twins(self) -> None:
        twins = self._keys[1:] == self._keys[:-1]
        if twins.any():
            (first,) = key_values(self._keys[1:][twins][:1])
            raise SourceBroken(
                f"the key {self._plan.key!r} does not tell rows apart: {first!r} is there twice, and so are "
                f"{twins.sum() - 1} more. Name a column without repeats by key=…"
            )

    def _digest(self, columns: Mapping[str, Column], nulls: Nulls) -> str:
        question = self._plan.question
        told = [1, question.query, repr(question.parameters), self._plan.key, self._plan.mark, len(self)]
        told += [sorted((name, repr(column)) for name, column in columns.items())]
        told += [
            nulls if isinstance(nulls, str) else sorted((name, repr(fill)) for name, fill in nulls.items())
        ]
        digest = hashlib.sha256(json.dumps(told).encode())
        digest.update(self._keys.tobytes())
        return digest.hexdigest()


def _numbers(places: Places) -> Indices:
    """Places one by one."""
    return np.arange(places.start, places.stop) if isinstance(places, slice) else places


def find_url(url: str) -> str:
    """The URL that is meant: of `env:NAME`, what that variable holds."""
    if not url.startswith("env:"):
        return url
    name = url.removeprefix("env:")
    if not os.environ.get(name):
        raise UsageError(f"the database's URL was to be in the variable {name}, which is not set")
    return os.environ[name]


def _connect(url: str, timeout_s: float | None) -> Connection:
    url = find_url(url)
    if url.startswith(_POSTGRES):
        from stoker.feed.sources.postgres import PostgresConnection, check_url

        check_url(url)
        return PostgresConnection.connect(url, timeout_s)
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        from stoker.feed.sources.sqlite import SqliteConnection

        return SqliteConnection(Path(url.removeprefix(_SQLITE)).absolute(), timeout_s)
    raise UsageError(
        f"no database is named by {hide_password(url)!r}: "
        "give postgresql://user@host/database, sqlite:///file or env:NAME"
    )
