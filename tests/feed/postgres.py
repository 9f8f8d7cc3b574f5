"""A real PostgreSQL server and an SQLite file, asked for the same things by the tests of the SQL source."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.errors import SourceChanged
from stoker.ward.postgres import PostgresServer


class Postgres:
    """A database on the server, empty for each test."""

    kind = "postgres"
    blob, text, real = "bytea", "text", "float8"

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.url = server, server.url
        server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        self.server.run(*statements)

    @staticmethod
    def bytes(data: bytes) -> str:
        """As a literal."""
        return f"'\\x{data.hex()}'::bytea"


class Sqlite:
    """A file, new for each test."""

    kind = "sqlite"
    blob, text, real = "blob", "text", "real"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "samples.db"
        self.url = f"sqlite:///{self.path}"

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    @staticmethod
    def bytes(data: bytes) -> str:
        """As a literal."""
        return f"x'{data.hex()}'"


Database = Postgres | Sqlite


def read_until_noticed(read: Callable[[], object]) -> str:
    """What SourceChanged says. A server that others write to all the time is looked at now and then only."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            read()
        except SourceChanged as noticed:
            return str(noticed)
    pytest.fail("the change was not noticed in 30 s")


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """One server for all tests of the session."""
    with PostgresServer() as running:
        yield running


@pytest.fixture
def postgres(server: PostgresServer) -> Postgres:
    """An empty database on the server."""
    return Postgres(server)


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.service), "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind in turn."""
    if request.param == "sqlite":
        return Sqlite(tmp_path)
    return Postgres(request.getfixturevalue("server"))
