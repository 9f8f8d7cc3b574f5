"""One database, SQLite or PostgreSQL by its URL: connections, transactions, migrations. No SQL of jobs.

Both are spoken to by their own drivers (sqlite3, psycopg) in the SQL they share; `?` stands for a value. What
differs is here: how to connect, how a transaction begins, what a lost connection looks like. A layer above
the drivers would bring 0.2 s of import to every runner, and nothing that the few statements here need.
"""

import contextlib
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import DatabaseUnreachable, MissingExtra, UsageError
from stoker.facts.secrets import hide_password

# RETURNING came with 3.35, IS DISTINCT FROM with 3.39.
_OLDEST_SQLITE = (3, 39)
_WAIT_S = 30.0  # for whoever writes before us
# Connections kept for the next who asks; more are open while more ask at once.
_MOST_WAITING = 8
_HARMED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


class Connection(Protocol):
    """What the two drivers have in common, as far as it is used."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement; a cursor."""

    def cursor(self) -> Any:
        """For statements by the many."""

    def close(self) -> None:
        """Let go of it."""


class Sqlite:
    """A file. Write-ahead: readers never wait for the writer. A commit is on the disk when it returns."""

    kind = "sqlite"
    begin = "BEGIN IMMEDIATE"

    def __init__(self, path: Path) -> None:
        self.path = path

    def connect(self) -> Connection:
        """A connection for one thread."""
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise DatabaseUnreachable(
                f"this Python has SQLite {sqlite3.sqlite_version}, and the store needs 3.39 or newer: "
                "use a newer Python, or a store in PostgreSQL (--store postgresql://…)"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            made = sqlite3.connect(
                self.path,
                timeout=_WAIT_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                # Made by SQLite it is everybody's to read, and requests may have passwords. By its name: to
                # open and close the file here would give up the locks of this process's other connections.
                if is_new and self.path.exists():
                    self.path.chmod(0o600)
                _write_ahead(made)
                made.execute("PRAGMA synchronous = FULL")
            except (OSError, sqlite3.Error):
                made.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise DatabaseUnreachable(
                f"cannot open {self.path}: {error}; give --store another file, or make this one readable"
            ) from error
        return made

    def is_broken(self, error: BaseException) -> bool:
        """Whether the file is gone, full, harmed, or held by a writer for too long."""
        if isinstance(error, sqlite3.OperationalError):
            return True
        # Of a harmed file the driver raises what all its other errors are too.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return isinstance(error, sqlite3.DatabaseError) and code in _HARMED

    def translate(self, sql: str) -> str:
        """As SQLite has it."""
        return sql

    def check(self, connection: Connection) -> None:
        """DatabaseUnreachable where the file is harmed; it is read once, all of it."""
        try:
            [(told,), *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.DatabaseError as error:
            told = str(error)
        if told != "ok":
            raise DatabaseUnreachable(
                f"{self.path} is harmed: {' '.join(told.split())}; put back a copy of it, or give --store "
                "another file"
            )


class Postgres:
    """A server."""

    kind = "postgresql"
    begin = "BEGIN"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtra("psycopg", "serve", "A store in PostgreSQL") from error
        self._psycopg = psycopg
        self.url = url

    def connect(self) -> Connection:
        """A connection for one thread; one whose client is gone gives its locks back."""
        try:
            made: Connection = self._psycopg.connect(
                self.url,
                autocommit=True,
                connect_timeout=10,
                options="-c idle_in_transaction_session_timeout=30s -c statement_timeout=60s",
            )
        except self._psycopg.OperationalError as error:
            raise DatabaseUnreachable(
                f"no connection to the store {hide_password(self.url)}: {str(error).strip()}"
            ) from error
        return made

    def is_broken(self, error: BaseException) -> bool:
        """Whether the server is gone, or cannot: a standby that takes no writes, a session it has ended."""
        known = self._psycopg
        return isinstance(error, (known.OperationalError, known.InterfaceError, known.InternalError))

    def translate(self, sql: str) -> str:
        """Values are %s there."""
        return sql.replace("?", "%s")

    def check(self, connection: Connection) -> None:
        """It looks after itself."""


class Database:
    """Statements and transactions, from any thread: each has a connection to itself for as long as it lasts.

    Those that wait are taken up again, the last one used first. Not one for each thread: a server's threads
    come and go, and each left its connection open.
    """

    def __init__(self, dialect: Sqlite | Postgres) -> None:
        self._dialect = dialect
        self._waiting: list[Connection] = []
        self._open: set[Connection] = set()
        self._lock = threading.Lock()

    @property
    def kind(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._dialect.kind

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query. A connection that was lost since the last one is made again, once."""
        try:
            return self._rows(sql, values)
        except DatabaseUnreachable:
            return self._rows(sql, values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """All that is written in the block, or nothing of it. Writers follow one another."""
        with self._begun(self._dialect.begin) as connection:
            # Also the lock, in PostgreSQL: whoever has the row writes.
            [(last,)] = connection.execute("UPDATE clock SET last = last RETURNING last").fetchall()
            within = Transaction(connection, self._dialect, last)
            yield within
            if within.last != last:
                connection.execute(self._dialect.translate("UPDATE clock SET last = ?"), (within.last,))
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator["Snapshot"]:
        """Queries that all see one moment."""
        begin = "BEGIN" if self.kind == "sqlite" else "BEGIN ISOLATION LEVEL REPEATABLE READ"
        with self._begun(begin) as connection:
            yield Snapshot(connection, self._dialect)
            connection.execute("ROLLBACK")

    def tidy(self) -> None:
        """Bring what was written to its place in SQLite's file: who writes next has less to do for it.

        Else every thousandth page or so the writer of the moment did it, and a request waited for that.
        """
        if self.kind == "sqlite":
            self.read("PRAGMA wal_checkpoint(PASSIVE)")

    def check(self) -> None:
        """DatabaseUnreachable where what is kept there is harmed."""
        connection = self._dialect.connect()
        try:
            self._dialect.check(connection)
        finally:
            connection.close()

    def migrate(self) -> None:
        """Bring the schema to this version, in one transaction; UsageError where it is of a newer one."""
        wanted = read_migrations()
        with self._begun(self._dialect.begin) as connection:
            if self.kind == "postgresql":  # else two servers that start at once both make the tables
                connection.execute("SELECT pg_advisory_xact_lock(7705)")
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
            [(there,)] = connection.execute("SELECT COALESCE(MAX(version), 0) FROM schema_version").fetchall()
            if there > len(wanted):
                raise UsageError(
                    f"the store has schema {there}, and this version of Stoker knows {len(wanted)}: "
                    "use the newer version, or another store"
                )
            for version, sql in enumerate(wanted[there:], there + 1):
                for statement in sql.split(";\n"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute(
                    self._dialect.translate("INSERT INTO schema_version (version) VALUES (?)"), (version,)
                )
            connection.execute("COMMIT")

    def close(self) -> None:
        """Close all connections, those in use as soon as they are not; a later call opens a new one."""
        with self._lock:
            waiting, self._waiting, self._open = self._waiting, [], set()
        for connection in waiting:
            connection.close()

    def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        connection = self._take()
        try:
            found: list[tuple[Any, ...]] = connection.execute(self._dialect.translate(sql), values).fetchall()
        except BaseException as error:
            self._give_up(connection)
            if self._dialect.is_broken(error):
                raise _unreachable(error) from error
            raise
        self._give_back(connection)
        return found

    @contextlib.contextmanager
    def _begun(self, sql: str) -> Iterator[Connection]:
        """A connection inside a transaction, which the block ends; undone where the block fails."""
        connection = self._begin(sql)
        try:
            yield connection
        except BaseException as error:
            if self._dialect.is_broken(error):  # undone with its connection: the next may be to a better one
                self._give_up(connection)
                raise _unreachable(error) from error
            self._undo(connection)
            raise
        self._give_back(connection)

    def _begin(self, sql: str) -> Connection:
        """Begin a transaction. A connection that was lost since it was last used is made again."""
        connection = self._take()
        try:
            connection.execute(sql)
        except Exception as lost:
            self._give_up(connection)
            if not self._dialect.is_broken(lost):
                raise
            connection = self._take()
            try:
                connection.execute(sql)
            except Exception as error:
                self._give_up(connection)
                if not self._dialect.is_broken(error):
                    raise
                raise _unreachable(error) from error
        return connection

    def _undo(self, connection: Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except Exception as error:
            self._give_up(connection)
            if not self._dialect.is_broken(error):
                raise
            # else the connection is gone, and what it had begun with it
        else:
            self._give_back(connection)

    def _take(self) -> Connection:
        with self._lock:
            if self._waiting:
                return self._waiting.pop()
        made = self._dialect.connect()
        with self._lock:
            self._open.add(made)
        return made

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            is_kept = connection in self._open and len(self._waiting) < _MOST_WAITING
            if is_kept:
                self._waiting.append(connection)
            else:
                self._open.discard(connection)
        if not is_kept:
            connection.close()

    def _give_up(self, connection: Connection) -> None:
        """Close one that failed, and those that wait: what has ended it has ended them too."""
        with self._lock:
            ended, self._waiting = [connection, *self._waiting], []
            self._open.difference_update(ended)
        for one in ended:
            try:
                one.close()
            except Exception as error:
                if not self._dialect.is_broken(error):
                    raise
                # else it was broken


class Snapshot:
    """Queries inside one transaction."""

    def __init__(self, connection: Connection, dialect: Sqlite | Postgres) -> None:
        self._connection = connection
        self._dialect = dialect

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, or of a statement with RETURNING."""
        found: list[tuple[Any, ...]] = self._connection.execute(
            self._dialect.translate(sql), values
        ).fetchall()
        return found


class Transaction(Snapshot):
    """Statements inside one transaction; `next` gives out the numbers that all of a store share."""

    def __init__(self, connection: Connection, dialect: Sqlite | Postgres, last: int) -> None:
        super().__init__(connection, dialect)
        self.last = last

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        return int(self._connection.execute(self._dialect.translate(sql), values).rowcount)

    def write_many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each; at one go."""
        if values:
            self._connection.cursor().executemany(self._dialect.translate(sql), values)

    def next(self) -> int:
        """The next number of the store."""
        self.last += 1
        return self.last


def dialect_of(url: str) -> Sqlite | Postgres:
    """By the URL: sqlite:///path, a path alone, or postgresql://user@host/database."""
    if url.startswith(("postgresql://", "postgres://")):
        return Postgres(url)
    if url.startswith("sqlite:///"):
        return Sqlite(Path(url.removeprefix("sqlite:///")))
    if "://" in url:
        raise UsageError(
            f"no store {hide_password(url)!r}: give sqlite:///FILE or postgresql://USER@HOST/DATABASE"
        )
    return Sqlite(Path(url))


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Have readers not wait for the writer, which is written into the file.

    Where several connections are the first of a file, SQLite tells all but one that it is locked, and waits
    for none of them.
    """
    give_up = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _unreachable(error: BaseException) -> DatabaseUnreachable:
    """What the drivers raise when a server or file is gone, as one error."""
    return DatabaseUnreachable(f"the store does not answer: {str(error).strip()}")


def read_migrations() -> list[str]:
    """The schema, step by step."""
    found = sorted(
        (one for one in resources.files("stoker.jobs.store").joinpath("migrations").iterdir()),
        key=lambda one: one.name,
    )
    return [one.read_text() for one in found if _MIGRATION.fullmatch(one.name)]
