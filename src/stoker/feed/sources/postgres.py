"""PostgreSQL for the SQL source: binary reads through ADBC, whose Arrow buffers become rows without a loop.

Without parameters all rows come by COPY, which takes none; with parameters by a cursor (measured at 0.6 of
the rate). Every transaction is read-only and sees one snapshot.

How a change is noticed: every version of a row carries the number of the transaction that wrote it (xmin), so
the count of a table's rows and a sum over the hashes of these numbers differ after any UPDATE, INSERT or
DELETE that was committed, and after nothing else. It takes a pass over the tables that the query's plan
reads. Between passes the server's snapshot, which comes with every read, tells when nothing at all was
committed. Where others commit all the time, a pass is made now and then, for a twentieth of the time at most.
"""

import json
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import torch

from stoker.errors import DatabaseUnreachable, MissingExtra, QueryRefused, SourceBroken, UsageError
from stoker.feed.sources.columns import Array, Field, Kind
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
from stoker.feed.sources.postgres_arrow import block, bound, key_column

# Type: what it becomes, of which dtype, and the type it is sent as.
_TYPES: dict[str, tuple[Kind, torch.dtype | None, str]] = {
    "int2": ("integer", None, ""),
    "int4": ("integer", None, ""),
    "int8": ("integer", None, ""),
    "float4": ("float", torch.float32, ""),
    "float8": ("float", torch.float64, ""),
    "numeric": ("float", torch.float64, "float8"),
    "bool": ("boolean", None, ""),
    "text": ("text", None, ""),
    "varchar": ("text", None, ""),
    "bpchar": ("text", None, ""),
    "uuid": ("text", None, "text"),
    "json": ("text", None, "text"),
    "jsonb": ("text", None, "text"),
    "bytea": ("bytes", None, ""),
    "timestamp": ("time", None, ""),
    "timestamptz": ("time", None, ""),
    "date": ("time", None, "timestamp"),
    "_int2": ("array", torch.int64, ""),
    "_int4": ("array", torch.int64, ""),
    "_int8": ("array", torch.int64, ""),
    "_float4": ("array", torch.float32, ""),
    "_float8": ("array", torch.float64, ""),
    "_numeric": ("array", torch.float64, "float8[]"),
    "_bool": ("array", torch.bool, ""),
}
_INTEGER_KEYS, _TEXT_KEYS = ("int2", "int4", "int8"), ("text", "varchar", "uuid")
# Of Arrow batches of 256, 384 and 512 KB the smallest came fastest into memory that is at hand (0.89, 0.81
# and 0.79 of psql's rate in one run): while a larger one is copied, the server waits, for a Unix socket holds
# a tenth of a millisecond of what it sends. Of smaller ones the walk from batch to batch in Python shows,
# some 50 us each (two cores, rows of 1.8 KB). Handed from thread to thread, a tenth more rows come by 512 KB
# (median of 13 turns).
_BLOCK_BYTES, _HANDED_BYTES = 256 << 10, 512 << 10
_FETCH_ROWS = 1000
# A pass over the tables may take this share of the time, where others commit all the time.
_MARK_SHARE = 0.05
# The connection is gone or was never there: connection exceptions, shutdown, starting up, too many clients;
# and conflicts with a replica's recovery.
_LOST = ("08", "57P01", "57P02", "57P03", "53300", "40001", "40P01")
# What libpq says of a server's FATAL answer that will not be its last word.
_PASSING = ("starting up", "shutting down", "too many", "recovery")
_LONGER = "If it took too long: give it longer by timeout_s=…, or an index on the key."
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class PostgresConnection(Connection):
    """One connection to a PostgreSQL server, version 13 or later."""

    def __init__(self, raw: Any, secrets: Sequence[str], timeout_s: float | None) -> None:
        super().__init__(raw, raw.Error)
        self._secrets, self._timeout_s = secrets, timeout_s
        self._known: str | None = None
        self._next_pass = 0.0
        settings = {
            "default_transaction_read_only": "on",
            "default_transaction_isolation": "repeatable read",
            # A scan that starts where another one is would come out of the key's order.
            "synchronize_seqscans": "off",
        }
        if timeout_s is not None:
            settings["statement_timeout"] = str(round(timeout_s * 1000))
        asked = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
        self._ask(f"SELECT {asked}")

    @classmethod
    def connect(cls, url: str, timeout_s: float | None) -> "PostgresConnection":
        """Connect to the server of a URL."""
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as missing:
            raise MissingExtra("adbc-driver-postgresql", "sql", "reading from PostgreSQL") from missing
        patience = "" if "connect_timeout=" in url else ("&" if "?" in url else "?") + "connect_timeout=10"
        secrets = secrets_of(url)
        with _telling("connecting", secrets):
            raw = dbapi.connect(url + patience, autocommit=True)
        return cls(raw, secrets, timeout_s)

    def another(self) -> "PostgresConnection":
        """A further connection. It knows the server's types already; asking took 25 of 28 ms."""
        with self.lock, _telling("connecting", self._secrets):
            raw = self._raw.adbc_clone()
            raw.adbc_connection.set_autocommit(True)
        return PostgresConnection(raw, self._secrets, self._timeout_s)

    def open(self, question: Question) -> Opening:
        """Find out what the query gives: columns, keys, NULLs and the mark, from one snapshot."""
        with self.lock, self._transaction():
            types = self._types(question)
            key = choose_key(question.key, list(types))
            key_type = types[key]
            if key_type not in _INTEGER_KEYS + _TEXT_KEYS:
                raise QueryRefused(
                    f"the key {key!r} is {key_type}: it must be a whole number, text or uuid. "
                    "Name another column by key=…, or cast it in the query."
                )
            integer = key_type in _INTEGER_KEYS
            counted = ", ".join(f"count(*) - count(q.{quote(name)})" for name in types)
            answer = self._ask(f"SELECT {counted} FROM {question.rows}", question.parameters)
            nulls = {name: column[0] for name, column in zip(types, answer, strict=True)}
            if nulls[key]:
                raise SourceBroken(f"the key {key!r} is NULL in {nulls[key]} rows: choose another one")
            keys = self._keys(question, f"q.{quote(key)}::{'int8' if integer else 'text'}")
            fields = tuple(self._field(question, name, kind) for name, kind in types.items())
            tables = () if question.version is not None else self._tables(question)
            plan = Plan(
                question=question,
                key=key,
                key_kind="integer" if integer else "text",
                key_type=key_type,
                fields=fields,
                tables=tables,
                mark=self._mark(question, tables),
                moment=self._moment(),
            )
        return Opening(plan=plan, keys=keys, nulls=nulls)

    def fetch(self, plan: Plan, keys: Array) -> list[Block]:
        """The rows with these keys, in one statement."""
        import pyarrow

        place = f"${len(plan.question.parameters) + 1}"
        cast = "::text[]::uuid[]" if plan.key_type == "uuid" else ""
        statement = (
            f"SELECT {_selected(plan)}, pg_current_snapshot()::text FROM {plan.question.rows} "
            f"WHERE q.{quote(plan.key)} = ANY({place}{cast})"
        )
        wanted = pyarrow.array([key_values(keys)], pyarrow.list_(_arrow_key(plan)))
        with self.lock:
            with self._telling("reading rows by key"), self._raw.cursor() as cursor:
                cursor.execute(statement, bound(plan.question.parameters, wanted))
                batches = cursor.fetch_arrow_table().to_batches()
            found = [batch for batch in batches if len(batch)]
            self._check(plan, found[0].column(found[0].num_columns - 1)[0].as_py() if found else "")
        return [block(plan, batch) for batch in found]

    def stream(self, plan: Plan, *, in_order: bool, handed_on: bool) -> Generator[Block, None, None]:
        """All rows from one snapshot, after its mark was found to be the plan's."""
        statement = f"SELECT {_selected(plan)} FROM {plan.question.rows}"
        if in_order:
            key = f"q.{quote(plan.key)}"
            statement += f" ORDER BY {key}" + ("" if plan.key_kind == "integer" else '::text COLLATE "C"')
        with self._transaction():
            if self._moment() != plan.moment and self._mark(plan.question, plan.tables) != plan.mark:
                raise changed("others wrote to its tables")
            size = _HANDED_BYTES if handed_on else _BLOCK_BYTES
            with self._telling("reading all rows"):
                for batch in self._all(statement, plan.question.parameters, size):
                    yield block(plan, batch)

    def _all(self, statement: str, parameters: Sequence[Any], block_bytes: int) -> Iterator[Any]:
        """Every row of a statement, in Arrow batches; how large, a cursor is not told."""
        if parameters:
            return self._by_cursor(statement, parameters)
        return self._by_copy(statement, block_bytes)

    def _by_copy(self, statement: str, block_bytes: int) -> Iterator[Any]:
        import pyarrow

        with self._raw.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(block_bytes)})
            cursor.execute(statement)
            try:
                yield from cursor.fetch_record_batch()
            except (OSError, pyarrow.ArrowException) as error:
                # Here the driver's error is Arrow's. If the connection broke, ending the transaction says so.
                told = " ".join(str(error).split())
                raise QueryRefused(f"the database broke off the read: {told}. {_LONGER}") from error

    def _by_cursor(self, statement: str, parameters: Sequence[Any]) -> Iterator[Any]:
        # The planner would choose a plan that is quick with the first rows; all of them will be read.
        self._ask("SELECT set_config('cursor_tuple_fraction', '1', true)")
        with self._raw.cursor() as cursor:
            cursor.execute(f"DECLARE stoker NO SCROLL CURSOR FOR {statement}", bound(parameters))
        with self._raw.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            while True:
                cursor.execute(f"FETCH {_FETCH_ROWS} FROM stoker")
                table = cursor.fetch_arrow_table()
                if not len(table):
                    return
                yield from table.to_batches()

    def _ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[list[Any]]:
        """The answer's columns, as Python values."""
        with self._telling(), self._raw.cursor() as cursor:
            # COPY would take neither EXPLAIN nor settings; what is asked here is short, but for the keys.
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(statement, bound(parameters))
            return [column.to_pylist() for column in cursor.fetch_arrow_table().columns]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._telling():
            self._raw.adbc_connection.set_autocommit(False)
        left_early = False
        try:
            yield
        except GeneratorExit:
            left_early = True
            raise
        finally:
            # To end a stream in order would be to read the rest of it; who leaves it early closes it.
            if not left_early:
                with self._telling():
                    self._raw.adbc_connection.set_autocommit(True)

    def _types(self, question: Question) -> dict[str, str]:
        """The names of the columns, with PostgreSQL's names of their types."""
        with self._telling("preparing the query"), self._raw.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(f"SELECT * FROM {question.rows} LIMIT 0", bound(question.parameters))
            schema = cursor.fetch_arrow_table().schema
        names = [field.name for field in schema]
        for name in names:
            if names.count(name) > 1:
                raise QueryRefused(f"the query has two columns {name!r}. Name them apart: SELECT a AS b")
        return {field.name: (field.metadata or {}).get(b"POSTGRESQL:type", b"?").decode() for field in schema}

    def _keys(self, question: Question, selected: str) -> Array:
        asked = f"SELECT {selected} FROM {question.rows}"
        with self._telling("reading the keys"):
            parts = [
                key_column(batch.column(0)) for batch in self._all(asked, question.parameters, _BLOCK_BYTES)
            ]
        return np.concatenate(parts) if parts else key_array([])

    def _field(self, question: Question, name: str, type_name: str) -> Field:
        if type_name not in _TYPES:
            told = "of a type that is not known here" if "<" in type_name else type_name
            raise QueryRefused(
                f"column {name!r} is {told}, which does not become a tensor. "
                f"Cast it in the query, for example {quote(name)}::text, or leave it out."
            )
        kind, dtype, _ = _TYPES[type_name]
        if kind not in ("bytes", "array"):
            return Field(name=name, kind=kind, type_name=type_name, dtype=dtype)
        column = f"q.{quote(name)}"
        measured = f"'[1:' || octet_length({column}) || ']'" if kind == "bytes" else f"array_dims({column})"
        (found,) = self._ask(
            f"SELECT {measured} FROM {question.rows} WHERE {column} IS NOT NULL LIMIT 1", question.parameters
        )
        # As in [1:7][1:64]; an array without elements has no dimensions.
        ends = re.findall(r"\[(-?\d+):(-?\d+)\]", (found[0] if found else None) or "[1:0]")
        shape = tuple(int(last) - int(first) + 1 for first, last in ends)
        return Field(name=name, kind=kind, type_name=type_name, dtype=dtype, shape=shape)

    def _tables(self, question: Question) -> tuple[tuple[str, str], ...]:
        """The tables that the query reads, by its plan."""
        asked = f"EXPLAIN (VERBOSE, FORMAT JSON) SELECT * FROM {question.rows}"
        (told,) = self._ask(asked, question.parameters)
        found: set[tuple[str, str]] = set()
        nodes = [json.loads(told[0])[0]["Plan"]]
        while nodes:
            node = nodes.pop()
            nodes += node.get("Plans", [])
            if "Relation Name" in node:
                found.add((node["Schema"], node["Relation Name"]))
        return tuple(sorted(found))

    def _mark(self, question: Question, tables: Sequence[tuple[str, str]]) -> str:
        """What changes when rows of these tables do, or the answer to the user's own question about that."""
        if question.version is not None:
            version = Question(query=question.version).rows
            (answer,) = self._ask(f"SELECT q::text FROM {version}")
            return json.dumps(answer)
        marks = []
        for schema, table in tables:
            counted = "count(*)::text, coalesce(sum(hashint8extended(t.xmin::text::int8, 0)), 0)::text"
            try:
                answer = self._ask(f"SELECT {counted} FROM ONLY {quote(schema)}.{quote(table)} AS t")
            except QueryRefused as error:
                raise QueryRefused(
                    f"cannot tell by the rows of {schema}.{table} whether they change ({error}). "
                    "Give a query whose answer does: version='SELECT max(updated) FROM …'."
                ) from error
            marks.append([schema, table, *(column[0] for column in answer)])
        return json.dumps(marks)

    def _moment(self) -> str:
        (told,) = self._ask("SELECT pg_current_snapshot()::text")
        return str(told[0])

    def _check(self, plan: Plan, moment: str) -> None:
        """SourceChanged if rows changed since the plan was made; this file's first words tell how."""
        known = self._known or plan.moment
        if moment == known or time.monotonic() < self._next_pass:
            return
        begun = time.monotonic()
        with self._transaction():
            now = self._moment()
            if self._mark(plan.question, plan.tables) != plan.mark:
                raise changed("others wrote to its tables")
        self._known = now
        ended = time.monotonic()
        self._next_pass = ended + (ended - begun) / _MARK_SHARE

    def _telling(self, doing: str = "reading") -> AbstractContextManager[None]:
        return _telling(doing, self._secrets)


@contextmanager
def _telling(doing: str, secrets: Sequence[str]) -> Iterator[None]:
    """Errors of the driver as errors of ours, with nothing secret in them."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        raise _translated(error, doing, secrets) from None


def _translated(error: Any, doing: str, secrets: Sequence[str]) -> Exception:
    details = dict(error.details or ())
    told = details.get(b"PG_DIAG_MESSAGE_PRIMARY", b"").decode(errors="replace")
    if not told:
        told = " ".join(re.sub(r"^\w+: (\[libpq\] )?(Failed to connect: )?", "", str(error)).split())
    for secret in secrets:
        told = told.replace(secret, "***")
    state = error.sqlstate or ""
    if doing == "connecting":
        return _not_connected(told)
    if (state.startswith(_LOST) and state != "08P01") or not state:
        return ConnectionLost(told)
    if state == "57014":
        return QueryRefused(f"{doing} was ended by the server: {told}. {_LONGER}")
    if state == "25006":
        return QueryRefused(f"the query writes ({told}): transactions here are read-only. Let it only read.")
    if state in ("42601", "0A000"):
        return QueryRefused(f"the database refuses the query: {told}. It must be one SELECT and only read.")
    return QueryRefused(f"the database refuses the query: {told} (SQLSTATE {state}). Try it in psql first.")


def _not_connected(told: str) -> Exception:
    final = "FATAL" in told and not any(word in told for word in _PASSING)
    if final or told.startswith(("invalid", "missing", "fe_sendauth", "definition of service")):
        return DatabaseUnreachable(f"no connection to PostgreSQL: {told}. Look at the parts of its URL.")
    return ConnectionLost(told)


def check_url(url: str) -> None:
    """Refuse a URL whose password would be taken for something else, and be printed as that."""
    authority, _, rest = url.partition("://")[2].partition("/")
    if authority.count("@") > 1 or ("@" in rest.partition("?")[0] and "@" not in authority):
        raise UsageError(
            "the database's URL has an @ or / where none can be. In a password write @ as %40 and / as %2F."
        )


def secrets_of(url: str) -> list[str]:
    """What of a URL may not be shown: the password, as written and as meant."""
    parts = urlsplit(url)
    found = [parts.password or ""]
    for name in _SECRETS:
        found += parse_qs(parts.query).get(name, [])
    return [secret for secret in {*found, *map(unquote, found)} if secret]


def _selected(plan: Plan) -> str:
    """Every column in the type that it is sent as."""
    columns = []
    for field in plan.fields:
        cast = _TYPES[field.type_name][2]
        if field.name == plan.key:
            cast = "int8" if plan.key_kind == "integer" else "text"
        column = f"q.{quote(field.name)}{f'::{cast}' if cast else ''}"
        columns.append(f"array_send({column})" if field.kind == "array" else column)
    return ", ".join(columns)


def _arrow_key(plan: Plan) -> Any:
    import pyarrow

    return pyarrow.int64() if plan.key_kind == "integer" else pyarrow.string()
