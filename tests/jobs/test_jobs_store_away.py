"""A store that is harmed, or takes no writes for a while, is one that does not answer: it is asked again."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import DatabaseUnreachable
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Report
from stoker.ward.postgres import PostgresServer

from .kit import counting


@pytest.fixture
def reads_only(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Store]:
    """A store with a job that runs, whose server takes no writes: as a standby, after a failover."""
    store = Store.open(postgres_url)
    job = store.create(counting())
    attempt = Holding(store).claim(job.id, engine="test")
    assert attempt is not None
    Holding(store).begin(job.id, attempt.token, "h")
    set_read_only(postgres_server, store, "on")
    yield store
    set_read_only(postgres_server, store, "off")
    store.close()


def set_read_only(server: PostgresServer, store: Store, value: str) -> None:
    server.run(f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()")
    while store.database.read("SHOW default_transaction_read_only") != [(value,)]:
        time.sleep(0.01)


@pytest.mark.service
def test_a_server_that_takes_no_writes_is_asked_again(
    reads_only: Store, postgres_server: PostgresServer
) -> None:
    """After a failover a runner's report is not refused for good: it is told again, and then heard."""
    [job] = reads_only.jobs().items
    token = job.attempts[-1].token
    with pytest.raises(DatabaseUnreachable, match="read-only"):
        Holding(reads_only).report(job.id, token, Report())
    assert reads_only.database.connections == 0, "one to a standby is no use: the next may be to the primary"
    with pytest.raises(DatabaseUnreachable, match="read-only"):
        reads_only.create(counting())
    set_read_only(postgres_server, reads_only, "off")
    Holding(reads_only).report(job.id, token, Report())


@pytest.mark.service
def test_a_transaction_that_the_server_ended_is_begun_again(postgres_url: str) -> None:
    """As where this process was stopped inside of one for longer than the server waits."""
    store = Store.open(postgres_url)
    with pytest.raises(DatabaseUnreachable), store.database.transaction() as do:
        do.write("SET LOCAL idle_in_transaction_session_timeout = 20")
        time.sleep(0.5)  # the idleness itself
        do.read("SELECT 1")
    assert store.create(counting()).position == 1
    store.close()


def test_a_file_that_is_harmed_while_it_is_used_does_not_answer(tmp_path: Path) -> None:
    """A runner goes on and tells it later, when a copy was put back; nobody is answered by a traceback."""
    place = tmp_path / "jobs.db"
    store = Store.open(str(place))
    for number in range(200):
        store.create(counting(name=f"job {number}"))
    store.close()
    whole = place.read_bytes()
    harmed = bytearray(whole)
    for at in range(8192, len(harmed) - 4096, 4096):
        harmed[at : at + 200] = bytes(200)
    place.write_bytes(harmed)
    store = Store.open(str(place))
    with pytest.raises(DatabaseUnreachable, match="malformed"):
        store.jobs(limit=200)
    with pytest.raises(DatabaseUnreachable, match="malformed"):
        store.create(counting())
    store.close()
    place.write_bytes(whole)
    assert len(store.jobs(limit=200).items) == 200
    store.close()
