"""SQLite for the SQL source: the embedded twin of PostgreSQL, opened for reading only.

A column has no type here, its values have: all of a column must be of one (whole numbers among fractions
apart). There are no arrays, booleans or times: bytes, numbers and text stand for them.

How a change is noticed: SQLite tells a connection when another one has committed (data_version). From one
process to the next it is the file's change counter, size and time; with a write-ahead log also the log's, and
then a checkpoint counts as a change.
"""

import json
import sqlite3
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import DatabaseUnreachable, QueryRefused, SourceBroken
from stoker.feed.sources.columns import Array, Cells, Field, Kind
from stoker.feed.sources.database import (
    Block,
    Connection,
    ConnectionLost,
    Opening,
    Plan,
    Question,
    changed,
    choose_key,
    key_array,
    key_values,
    quote,
)

_KINDS: dict[str, Kind] = {"integer": "integer", "real": "float", "text": "text", "blob": "bytes"}
_FETCH_ROWS = 1000
# How SQLite tells of a file that is gone, cut, or none of its own.
_BROKEN = ("unable to open", "not a database", "malformed", "disk I/O error")
# How long a writer is waited for, and how often (in steps of SQLite's machine) the clock is looked at.
_BUSY_S = 10.0
_STEPS = 10_000


class SqliteConnection(Connection):
    """One connection to a file, which must be there; nothing is ever written."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        if not path.is_file():
            raise DatabaseUnreachable(f"there is no SQLite file {path}: check the path")
        with _telling(path):
            raw = sqlite3.connect(
                f"{path.as_uri()}?mode=ro",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
        super().__init__(raw, sqlite3.Error)
        self._path, self._timeout_s = path, timeout_s
        self._known: int | None = None
        self._deadline = 0.0
        if timeout_s is not None:
            # A look-up by a weak reference, or the connection would hold itself.
            me = weakref.ref(self)
            raw.set_progress_handler(lambda: (held := me()) is not None and held.is_late, _STEPS)

    @property
    def is_late(self) -> bool:
        """Whether the statement under way has had its time."""
        return time.monotonic() > self._deadline

    def open(self, question: Question) -> Opening:
        """Find out what the query gives: columns, keys, NULLs and the mark, from one snapshot."""
        with self.lock, self._transaction():
            names = self._names(question)
            key = choose_key(question.key, names)
            found = self._found(question, names)
            fields = tuple(self._field(question, name, found[name][1:]) for name in names)
            kind = next(field.kind for field in fields if field.name == key)
            if kind not in ("integer", "text") and found[key][1]:
                raise QueryRefused(f"the key {key!r} is {found[key][1]}: it must be a whole number or text")
            if found[key][0]:
                raise SourceBroken(f"the key {key!r} is NULL in {found[key][0]} rows: choose another one")
            keys = self._ask(f"SELECT q.{quote(key)} FROM {question.rows}", question.parameters).fetchall()
            plan = Plan(
                question=question,
                key=key,
                key_kind="text" if kind == "text" else "integer",
                key_type=kind,
                fields=fields,
                mark=self._mark(question),
            )
            self._known = self._data_version()
        nulls = {name: found[name][0] for name in names}
        return Opening(plan=plan, keys=key_array([row[0] for row in keys]), nulls=nulls)

    def fetch(self, plan: Plan, keys: Array) -> list[Block]:
        """The rows with these keys, in one statement."""
        place = f"${len(plan.question.parameters) + 1}"
        statement = (
            f"SELECT {_selected(plan)} FROM {plan.question.rows} "
            f"WHERE q.{quote(plan.key)} IN (SELECT value FROM json_each({place}))"
        )
        with self.lock, self._transaction():
            self._check(plan)
            wanted = (*plan.question.parameters, json.dumps(key_values(keys)))
            rows = self._ask(statement, wanted).fetchall()
        if len(rows) > len(keys):  # compared by the column's own collation, to which "a" may be "A"
            known = set(key_values(keys))
            rows = [row for row in rows if row[0] in known]
        return [_block(plan, rows)] if rows else []

    def stream(self, plan: Plan, *, in_order: bool, handed_on: bool) -> Generator[Block, None, None]:
        """All rows from one snapshot, after its mark was found to be the plan's."""
        statement = f"SELECT {_selected(plan)} FROM {plan.question.rows}"
        if in_order:
            statement += f" ORDER BY q.{quote(plan.key)} COLLATE BINARY"
        with self._transaction():
            self._check(plan)
            cursor = self._ask(statement, plan.question.parameters)
            while True:
                with _telling(self._path):
                    rows = cursor.fetchmany(_FETCH_ROWS)
                if not rows:
                    return
                yield _block(plan, rows)

    def another(self) -> "SqliteConnection":
        """A further connection to the file."""
        return SqliteConnection(self._path, self._timeout_s)

    def _ask(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        named = {str(at + 1): value for at, value in enumerate(parameters)}
        with _telling(self._path):
            asked: sqlite3.Cursor = self._raw.execute(statement, named)
            return asked

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._deadline = time.monotonic() + (self._timeout_s or 0.0)
        self._ask("BEGIN")
        try:
            yield
        finally:
            self._raw.rollback()

    def _names(self, question: Question) -> list[str]:
        described = self._ask(f"SELECT * FROM {question.rows} LIMIT 0", question.parameters).description
        names = [column[0] for column in described]
        for name in names:
            # In a subselect SQLite calls the second x "x:1".
            if f"{name}:1" in names:
                raise QueryRefused(f"the query has two columns {name!r}. Name them apart: SELECT a AS b")
        return names

    def _found(
        self, question: Question, names: Sequence[str]
    ) -> dict[str, tuple[int, str | None, str | None]]:
        """How many NULLs each column has, and the first and last by name of the types in it."""
        columns = []
        for name in names:
            typed = f"CASE WHEN q.{quote(name)} IS NOT NULL THEN typeof(q.{quote(name)}) END"
            columns.append(f"count(*) - count(q.{quote(name)}), min({typed}), max({typed})")
        row = self._ask(f"SELECT {', '.join(columns)} FROM {question.rows}", question.parameters).fetchone()
        return {name: row[3 * at : 3 * at + 3] for at, name in enumerate(names)}

    def _field(self, question: Question, name: str, types: tuple[str | None, str | None]) -> Field:
        if types == (None, None):
            return Field(name=name, kind="float", type_name="without a value")
        low, high = types
        if low != high and types != ("integer", "real"):
            raise QueryRefused(
                f"column {name!r} has {low} in some rows and {high} in others. Cast it in the query."
            )
        kind = _KINDS[high or ""]
        if kind != "bytes":
            return Field(name=name, kind=kind, type_name=high or "")
        column = f"q.{quote(name)}"
        length = self._ask(
            f"SELECT length({column}) FROM {question.rows} WHERE {column} IS NOT NULL LIMIT 1",
            question.parameters,
        ).fetchone()[0]
        return Field(name=name, kind=kind, type_name="blob", shape=(length,))

    def _mark(self, question: Question) -> str:
        """What changes when the file does, or the answer to the user's own question about that."""
        if question.version is not None:
            return repr(self._ask(f"SELECT * FROM {Question(query=question.version).rows}").fetchall())
        with self._path.open("rb") as file:
            header = file.read(100)
        told = self._path.stat()
        mark = [int.from_bytes(header[24:28]), told.st_size, told.st_mtime_ns]
        log = self._path.with_name(self._path.name + "-wal")
        if log.exists() and log.stat().st_size:
            mark += [log.stat().st_size, log.stat().st_mtime_ns]
        return json.dumps(mark)

    def _data_version(self) -> int:
        return int(self._ask("PRAGMA data_version").fetchone()[0])

    def _check(self, plan: Plan) -> None:
        """SourceChanged if the file is not as the plan knows it."""
        now = self._data_version()
        if now != self._known:
            if self._mark(plan.question) != plan.mark:
                raise changed("others wrote to the file")
            self._known = now


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Errors of SQLite as errors of ours."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:  # the others are of its parameters
        raise _translated(error, path) from error


def _translated(error: Exception, path: Path) -> Exception:
    told = str(error)
    if "interrupted" in told:
        return QueryRefused("reading ran past timeout_s. Give it longer, or an index on the key.")
    if "locked" in told or "busy" in told:
        return ConnectionLost(f"{path} is held by a writer: {told}")
    if any(word in told for word in _BROKEN):
        return DatabaseUnreachable(
            f"{path} cannot be read as an SQLite database: {told}; put back one that is whole"
        )
    if "readonly" in told:
        return QueryRefused(f"the query writes ({told}): Let it only read.")
    if "syntax error" in told or "one statement" in told:
        return QueryRefused(f"the database refuses the query: {told}. It must be one SELECT and only read.")
    return QueryRefused(f"the database refuses the query: {told}. Try it in sqlite3 first.")


def _selected(plan: Plan) -> str:
    return ", ".join(f"q.{quote(name)}" for name in (plan.key, *(field.name for field in plan.fields)))


def _block(plan: Plan, rows: Sequence[tuple[Any, ...]]) -> Block:
    keys, *columns = zip(*rows, strict=True)
    return key_array(keys), [
        _cells(column, field) for column, field in zip(columns, plan.fields, strict=True)
    ]


def _cells(column: Sequence[Any], field: Field) -> Cells:
    missing = np.array([value is None for value in column]) if None in column else None
    if field.kind == "bytes":
        there: Sequence[Any] = [value or b"" for value in column] if missing is not None else column
        lengths = np.fromiter(map(len, there), np.int64, len(there))
        return Cells(values=np.frombuffer(b"".join(there), np.uint8), lengths=lengths, missing=missing)
    if field.kind == "text":
        return Cells(values=["" if value is None else value for value in column], missing=missing)
    kind = np.int64 if field.kind == "integer" else np.float64
    return Cells(values=np.array([0 if value is None else value for value in column], kind), missing=missing)
