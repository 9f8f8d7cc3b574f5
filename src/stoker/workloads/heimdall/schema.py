"""The tables of a set of measurements, in PostgreSQL or in its embedded twin SQLite, and how they are filled.

    datasets   a campaign: where it stands in frequency, how large its square is, how long its signals
    receivers  where each receiver of a dataset stands, by slot
    samples    a transmission: its position, which slots heard it, and what they measured

Features and signals are bytes in little-endian order, (slots, features) float32 and (slots, 2, values) int8:
as arrays of the database they came at 0.4 of the rate (98,000 rows/s against 257,000).
"""

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import DatabaseUnreachable, MissingExtra, QueryRefused, UsageError
from stoker.feed.sources.sql import find_url, hide_password
from stoker.workloads.heimdall.measurements import MadeRadio, measure, place_receivers

# A table's rows, column by column.
Columns: TypeAlias = dict[str, list[Any] | NDArray[Any]]

_POSTGRES = ("postgresql://", "postgres://")
_SQLITE = "sqlite:///"
_TABLES = ("datasets", "receivers", "samples")
# Samples made and sent at one go.
_TOGETHER = 1000
# Who fills a database keeps others from it by this number, in PostgreSQL; and how long these wait, in SQLite.
_LOCK, _PATIENCE_S = 0x4E1DA11, 3600.0

# {bytes} and so on stand for what each database calls the type.
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS datasets (
        id text PRIMARY KEY,
        name text NOT NULL,
        frequency_hz {double} NOT NULL,
        sample_rate_hz {double} NOT NULL,
        area_m {double} NOT NULL,
        iq_samples {integer} NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS receivers (
        id {bigint} PRIMARY KEY,
        dataset_id text NOT NULL REFERENCES datasets (id) ON DELETE CASCADE,
        slot {integer} NOT NULL,
        x_m {double} NOT NULL,
        y_m {double} NOT NULL,
        UNIQUE (dataset_id, slot)
    )""",
    """CREATE TABLE IF NOT EXISTS samples (
        id {bigint} PRIMARY KEY,
        dataset_id text NOT NULL REFERENCES datasets (id) ON DELETE CASCADE,
        split text NOT NULL CHECK (split IN ('train', 'valid')),
        x_m {double} NOT NULL,
        y_m {double} NOT NULL,
        heard {bytes} NOT NULL,
        features {bytes} NOT NULL,
        iq {bytes} NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS samples_of ON samples (dataset_id, split)",
)
_POSTGRES_TYPES = {"double": "float8", "integer": "int4", "bigint": "int8", "bytes": "bytea"}
_SQLITE_TYPES = {"double": "real", "integer": "integer", "bigint": "integer", "bytes": "blob"}


class _Database(Protocol):
    """What filling asks of a database: statements, rows by the table, all of it in one transaction."""

    errors: type[Exception]
    secrets: Sequence[str]

    def run(self, statement: str) -> None: ...

    def ask(self, statement: str) -> Any: ...

    def add(self, table: str, columns: Columns) -> None: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


def fill_database(url: str, made: MadeRadio) -> str:
    """Put a made set into a database unless it is there already; its dataset's id.

    The tables are made where there are none. A dataset appears whole or not at all: it is one transaction.
    """
    with closing(_connect(url)) as database:
        try:
            for statement in SCHEMA:
                database.run(statement)
            name = made.dataset_id
            if not database.ask(f"SELECT count(*) FROM datasets WHERE id = '{name}'"):  # a uuid of our own
                for table, columns in _rows(made, database):
                    database.add(table, columns)
            database.commit()
        except database.errors as error:
            raise QueryRefused(
                f"cannot fill {hide_password(find_url(url))}: {_said(error, database.secrets)}. Nothing was "
                f"kept of it. Give a database whose tables {', '.join(_TABLES)} are ours or not there yet, "
                "with room for them, and a user who may make and fill them."
            ) from None  # whose text may have the password
    return made.dataset_id


def _said(error: Exception, secrets: Sequence[str]) -> str:
    """What a database said, in a line, without what is secret."""
    told = " ".join(str(error).split())
    for secret in secrets:
        told = told.replace(secret, "***")
    return told


def _rows(made: MadeRadio, database: _Database) -> Iterator[tuple[str, Columns]]:
    """What goes into which table, in an order that references allow."""
    own = made.dataset_id
    first = {
        table: int(database.ask(f"SELECT coalesce(max(id), 0) + 1 FROM {table}")) for table in _TABLES[1:]
    }
    yield (
        "datasets",
        {
            "id": [own],
            "name": [made.name],
            "frequency_hz": [float(made.frequency_hz)],
            "sample_rate_hz": [float(made.sample_rate_hz)],
            "area_m": [float(made.area_m)],
            "iq_samples": [np.int32(made.iq_samples)],
        },
    )
    stations = place_receivers(made).astype(np.float64)
    slots = np.arange(len(stations))
    yield (
        "receivers",
        {
            "id": first["receivers"] + slots,
            "dataset_id": [own] * len(slots),
            "slot": slots.astype(np.int32),
            "x_m": stations[:, 0],
            "y_m": stations[:, 1],
        },
    )
    # Any sample is as good as any other, since they are drawn one by one: the last ones are to validate on.
    valid_from = made.samples - max(1, round(made.samples * made.valid_share))
    for start in range(0, made.samples, _TOGETHER):
        stop = min(start + _TOGETHER, made.samples)
        found = measure(made, start, stop)
        yield (
            "samples",
            {
                "id": first["samples"] + np.arange(start, stop),
                "dataset_id": [own] * (stop - start),
                "split": ["train" if number < valid_from else "valid" for number in range(start, stop)],
                "x_m": found.position[:, 0].astype(np.float64),
                "y_m": found.position[:, 1].astype(np.float64),
                "heard": [row.tobytes() for row in found.heard],
                "features": [row.astype("<f4").tobytes() for row in found.features],
                "iq": [row.tobytes() for row in found.iq],
            },
        )


def _connect(url: str) -> _Database:
    if sys.byteorder != "little":
        raise UsageError("sets are made on little-endian machines only: their bytes are in that order")
    url = find_url(url)
    if url.startswith(_POSTGRES):
        return _Postgres(url)
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        return _Sqlite(Path(url.removeprefix(_SQLITE)))
    raise UsageError(
        f"no database is named by {hide_password(url)!r}: "
        "give postgresql://user@host/database, sqlite:///file or env:NAME"
    )


class _Postgres:
    """Rows go by COPY, through ADBC."""

    def __init__(self, url: str) -> None:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as missing:
            raise MissingExtra("adbc-driver-postgresql", "sql", "filling a PostgreSQL database") from missing
        from stoker.feed.sources.postgres import check_url, secrets_of

        check_url(url)
        self.errors: type[Exception] = dbapi.Error
        self.secrets: Sequence[str] = secrets_of(url)
        try:
            self._raw = dbapi.connect(url)
            # Until the transaction ends: ranks that start together fill it once.
            self.ask(f"SELECT 1 FROM (SELECT pg_advisory_xact_lock({_LOCK})) AS taken")
        except dbapi.Error as error:
            raise DatabaseUnreachable(
                f"no connection to {hide_password(url)}, which was to be filled: "
                f"{_said(error, self.secrets)}. Look at the parts of its URL, and whether the server runs."
            ) from None  # whose text may have the password

    def run(self, statement: str) -> None:
        """Run a statement of the schema."""
        with self._raw.cursor() as cursor:
            cursor.execute(statement.format(**_POSTGRES_TYPES))

    def ask(self, statement: str) -> Any:
        """The first value of the answer."""
        with self._raw.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0]

    def add(self, table: str, columns: Columns) -> None:
        """Put rows into a table."""
        import pyarrow

        with self._raw.cursor() as cursor:
            cursor.adbc_ingest(
                table,
                pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()}),
                mode="append",
            )

    def commit(self) -> None:
        """Keep all of it."""
        self._raw.commit()

    def close(self) -> None:
        """Let go; what was not committed is gone."""
        self._raw.close()


class _Sqlite:
    """The embedded twin: a file."""

    errors: type[Exception] = sqlite3.Error
    secrets: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        with ExitStack() as opened:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._raw = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_S)
                opened.callback(self._raw.close)
                # Until the transaction ends: ranks that start together fill it once.
                self._raw.execute("BEGIN IMMEDIATE")
            except (OSError, sqlite3.Error) as error:
                raise DatabaseUnreachable(
                    f"cannot fill the SQLite file {path}: {error}. Give one where it can be written."
                ) from error
            opened.pop_all()

    def run(self, statement: str) -> None:
        """Run a statement of the schema."""
        self._raw.execute(statement.format(**_SQLITE_TYPES))

    def ask(self, statement: str) -> Any:
        """The first value of the answer."""
        return self._raw.execute(statement).fetchone()[0]

    def add(self, table: str, columns: Columns) -> None:
        """Put rows into a table."""
        plain = [list(map(_plain, values)) for values in columns.values()]
        places = ", ".join("?" * len(plain))
        self._raw.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", zip(*plain, strict=True)
        )

    def commit(self) -> None:
        """Keep all of it."""
        self._raw.execute("COMMIT")

    def close(self) -> None:
        """Let go; what was not committed is gone."""
        self._raw.close()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
