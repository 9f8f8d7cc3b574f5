"""A store of each kind in turn, and a service in a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.jobs.settings import Settings
from stoker.jobs.store import Store
from stoker.ward.postgres import PostgresServer

from .kit import SCRIPTS, Service
from .servers import Live, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of the session."""
    with PostgresServer() as running:
        yield running


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """An empty database on a real server."""
    postgres_server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres_server.url


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.service), "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store of each kind in turn."""
    opened = Store.open(store_url)
    yield opened
    opened.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with SQLite; its dispatcher is not started yet."""
    made = Service(Settings(root=tmp_path / "jobs", lease_s=20.0, slots=2, scripts=(SCRIPTS, tmp_path)))
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Live]:
    """A real server with SQLite, without a dispatcher: jobs stay as they are."""
    with running(tmp_path / "jobs") as live:
        yield live


@pytest.fixture
def stored_server(tmp_path: Path, store_url: str) -> Iterator[Live]:
    """A real server with a store of each kind in turn."""
    with running(tmp_path / "jobs", store=store_url) as live:
        yield live
