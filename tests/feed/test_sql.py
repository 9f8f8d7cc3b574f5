"""The SQL source on PostgreSQL and on SQLite: the same rows, the same batches, the same refusals."""

# ruff: noqa: F811  fixtures are imported by name

import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch

from feed.postgres import Database, Postgres, database, read_until_noticed, server  # noqa: F401  fixtures
from feed.workers import read_in_workers, reopened, same_bits
from stoker.errors import DatabaseUnreachable, QueryRefused, SourceBroken, SourceChanged, UsageError
from stoker.feed.sources.database import Connection, ConnectionLost
from stoker.feed.sources.sql import Column, SqlSource

ROWS = 50
IMAGE = Column(dtype=torch.float32, shape=(2, 3))


def image(key: int) -> torch.Tensor:
    """What the sample with this key holds."""
    return torch.arange(6, dtype=torch.float32).reshape(2, 3) * key - 0.5


@pytest.fixture
def captures(database: Database) -> Database:
    """50 rows with the keys 100, 98, … 2, written in this order: not that of the key."""
    keys = range(2 * ROWS, 0, -2)
    values = ", ".join(
        f"({key}, {database.bytes(image(key).numpy().tobytes())}, {key % 5}, {key / 4}, 'site {key}')"
        for key in keys
    )
    database.run(
        f"CREATE TABLE captures (id integer PRIMARY KEY, image {database.blob}, label integer, "
        f"gain {database.real}, site {database.text})",
        f"INSERT INTO captures VALUES {values}",
    )
    return database


def open_captures(database: Database, **more: Any) -> SqlSource:
    """All of it, the bytes as images."""
    query = "SELECT id, image, label, gain, site FROM captures"
    return SqlSource(database.url, query, **{"columns": {"image": IMAGE}, **more})


def expected(keys: list[int]) -> dict[str, Any]:
    """The batch of the rows with these keys."""
    return {
        "id": torch.tensor(keys),
        "image": torch.stack([image(key) for key in keys]),
        "label": torch.tensor([key % 5 for key in keys]),
        "gain": torch.tensor([key / 4 for key in keys], dtype=torch.float64),
        "site": [f"site {key}" for key in keys],
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to the last bit, in the same order of columns."""
    assert list(one) == list(other)
    for name, value in one.items():
        same = same_bits(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name


def test_a_batch_is_what_was_asked_for_in_that_order(captures: Database) -> None:
    """Sample k is the row with the k-th smallest key; one number may come twice."""
    source = open_captures(captures)
    assert len(source) == ROWS
    assert_same(source.read(np.array([7, 0, 49, 7])), expected([16, 2, 100, 16]))


def test_a_sample_is_a_row(captures: Database) -> None:
    """As a torch dataset: one sample has its columns without the first dimension."""
    sample = open_captures(captures)[-1]
    assert (sample["id"], sample["site"]) == (100, "site 100")
    assert same_bits(sample["image"], image(100))


def test_no_indices_are_an_empty_batch(captures: Database) -> None:
    """With the shapes that a full one would have."""
    batch = open_captures(captures).read(np.array([], np.int64))
    assert (batch["image"].shape, batch["label"].shape, batch["site"]) == ((0, 2, 3), (0,), [])


def test_everything_at_once_is_in_the_order_of_the_key(captures: Database) -> None:
    """Whatever the order in which the database holds it."""
    assert_same(open_captures(captures).read_all(), expected(list(range(2, 102, 2))))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_a_scan_gives_every_sample_once(captures: Database, batch_rows: int, in_order: bool) -> None:
    """In batches of the size asked for, with the numbers of their samples."""
    source = open_captures(captures)
    seen: list[int] = []
    for numbers, batch in source.scan(batch_rows, in_order=in_order):
        assert len(numbers) == min(batch_rows, ROWS - len(seen))
        assert_same(batch, expected([2 * number + 2 for number in numbers.tolist()]))
        seen += numbers.tolist()
    assert sorted(seen) == list(range(ROWS))
    assert not in_order or seen == sorted(seen)


def test_a_scan_may_be_left_early(captures: Database) -> None:
    """Its thread and its connection end with it, and the source can be read as before."""
    source = open_captures(captures)
    before = set(threading.enumerate())
    scan = source.scan(3)
    next(scan)
    scan.close()  # type: ignore[attr-defined]
    assert not [one for one in set(threading.enumerate()) - before if one.name == "stoker-read-ahead"]
    assert source[0]["id"] == 2


def test_parameters_are_bound(captures: Database) -> None:
    """A value that looks like SQL is only a value; the rows are those it selects, by each way of reading."""
    hostile = "site 4'; DROP TABLE captures; --"
    query = "SELECT id, label FROM captures WHERE site <> $1 AND id <= $2"
    source = SqlSource(captures.url, query, parameters=(hostile, 10))
    assert source.keys == [2, 4, 6, 8, 10]
    assert source.read(np.array([4]))["id"].tolist() == [10]
    assert source.read_all()["id"].tolist() == [2, 4, 6, 8, 10]
    assert [numbers.tolist() for numbers, _ in source.scan(3)] == [[0, 1, 2], [3, 4]]


def test_names_are_quoted(database: Database) -> None:
    """A column may be called anything, quotes and spaces included."""
    database.run(
        'CREATE TABLE odd ("a ""key"" of; it" integer, "SELECT" integer)',
        "INSERT INTO odd VALUES (1, 5), (2, 6)",
    )
    source = SqlSource(database.url, "SELECT * FROM odd -- all of it")
    assert source.read_all()["SELECT"].tolist() == [5, 6]
    assert source[1]['a "key" of; it'] == 2


def test_keys_may_be_text(database: Database) -> None:
    """In the order of their bytes, which no collation of the database changes."""
    names = ["b", "A", "a", "é", "Z", "zebra-0123456789"]
    values = ", ".join(f"('{name}', {number})" for number, name in enumerate(names))
    database.run(
        f"CREATE TABLE named (name {database.text} PRIMARY KEY, number integer)",
        f"INSERT INTO named VALUES {values}",
    )
    source = SqlSource(database.url, "SELECT number, name FROM named", key="name")
    assert source.keys == sorted(names, key=str.encode)
    assert source.read_all()["name"] == source.keys
    assert [batch["name"] for _, batch in source.scan(4)] == [source.keys[:4], source.keys[4:]]
    assert source.read(np.array([5, 1]))["name"] == [source.keys[5], source.keys[1]]


def test_a_column_becomes_what_is_asked(captures: Database) -> None:
    """Numbers are converted, bytes are viewed; without a word bytes are bytes as long as the first row's."""
    query = "SELECT id, image, label, gain FROM captures"
    kinds = {
        "label": Column(dtype=torch.bfloat16),
        "gain": Column(dtype=torch.float32),
        "id": Column(dtype=torch.int8),
    }
    batch = SqlSource(captures.url, query, columns=kinds).read(np.array([1]))
    assert same_bits(batch["label"], torch.tensor([4], dtype=torch.bfloat16))
    assert same_bits(batch["gain"], torch.tensor([1.0]))
    assert same_bits(batch["id"], torch.tensor([4], dtype=torch.int8))
    assert same_bits(batch["image"], image(4).reshape(1, 6).view(torch.uint8))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"imgae": IMAGE}, "'imgae'; the query's columns are id, image"),
        ({"gain": Column(dtype=torch.int64)}, "lose its fractions"),
        ({"label": Column(shape=(2,))}, "one value a row"),
        ({"site": Column(dtype=torch.uint8)}, "list of str"),
        ({"image": Column(dtype=torch.complex128)}, "24 bytes in its first row: no multiple of the 16"),
    ],
)
def test_a_column_that_cannot_become_that_is_refused(captures: Database, columns: Any, told: str) -> None:
    """At once, with the name of the column."""
    with pytest.raises(UsageError, match=told):
        open_captures(captures, columns=columns)


def test_a_number_that_its_type_cannot_hold_is_refused(captures: Database) -> None:
    """It does not wrap around into another one."""
    captures.run("UPDATE captures SET label = 300 WHERE id = 8")
    source = open_captures(captures, columns={"image": IMAGE, "label": Column(dtype=torch.uint8)})
    with pytest.raises(SourceBroken, match=r"'label' has 300: torch.uint8 is 0 to 255"):
        source.read_all()


def test_rows_of_another_length_are_refused_by_their_key(captures: Database) -> None:
    """By each way of reading."""
    captures.run(f"UPDATE captures SET image = {captures.bytes(b'short')} WHERE id = 8")
    source = open_captures(captures)
    assert source[2]["id"] == 6
    told = r"'image' has 5 bytes in the row with the key 8, where float32\[2, 3\] takes 24"
    for read in (source.read_all, lambda: source[3], lambda: list(source.scan())):
        with pytest.raises(SourceBroken, match=told):
            read()


def test_nulls_are_refused_by_name_and_number(captures: Database) -> None:
    """At the start, before anything is trained on."""
    captures.run(
        "UPDATE captures SET gain = NULL WHERE id < 10", "UPDATE captures SET site = NULL WHERE id = 2"
    )
    with pytest.raises(SourceBroken, match=r"of 50 rows NULL stands in column 'gain' in 4, 'site' in 1"):
        open_captures(captures)


def test_nulls_are_masked_or_filled_where_asked(captures: Database) -> None:
    """A mask is true where there is a value; under it stand zeros."""
    captures.run(
        *(f"UPDATE captures SET {name} = NULL WHERE id = 4" for name in ("image", "label", "gain", "site"))
    )
    nulls = {"image": "mask", "label": -1, "gain": float("nan"), "site": "nowhere"}
    source = open_captures(captures, nulls=nulls)
    for batch in (source.read(np.array([0, 1, 2])), source.read_all()):
        assert list(batch) == ["id", "image", "image_mask", "label", "gain", "site"]
        assert batch["image_mask"][:3].tolist() == [True, False, True]
        assert same_bits(batch["image"][:3], torch.stack([image(2), torch.zeros(2, 3), image(6)]))
        assert batch["label"][:3].tolist() == [2, -1, 1]
        assert batch["gain"][:3].isnan().tolist() == [False, True, False]
        assert batch["site"][:3] == ["site 2", "nowhere", "site 6"]
    masked = open_captures(captures, nulls={**nulls, "site": "mask"}).read(np.array([1]))
    assert (masked["site"], masked["site_mask"].tolist()) == ([""], [False])


@pytest.mark.parametrize(
    ("nulls", "told"),
    [
        ("ignore", "'ignore': give 'refuse'"),
        ({"lable": 0}, "'lable'; the query's columns are"),
        ({"label": 0.5}, "0.5 for 'label', which is no value of torch.int64"),
        ({"label": float("nan")}, "nan for 'label'"),
        ({"site": 3}, "3 for 'site', which is no value of text"),
        ({"label": "none"}, "'none' for 'label'"),
    ],
)
def test_a_fill_that_is_none_is_refused(captures: Database, nulls: Any, told: str) -> None:
    """It must be a value of the column's type."""
    with pytest.raises(UsageError, match=told):
        open_captures(captures, nulls=nulls)


def test_a_key_must_tell_rows_apart(captures: Database) -> None:
    """Neither twins nor NULL, and it must be a column of the query."""
    for key, told in (
        ("label", "0 is there twice, and so are 44 more"),
        ("mark", "the query's columns are id"),
    ):
        with pytest.raises(SourceBroken, match=told):
            open_captures(captures, key=key)
    captures.run("UPDATE captures SET label = NULL WHERE id = 2")
    with pytest.raises(SourceBroken, match="'label' is NULL in 1 rows"):
        open_captures(captures, key="label")
    with pytest.raises(QueryRefused, match="the key 'gain' is"):
        open_captures(captures, key="gain")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT id, nothing FROM captures", "nothing"),
        ("SELECT id FROM nowhere", "nowhere"),
        ("SELECT id, id FROM captures", "two columns 'id'"),
        ("SELECT id FROM captures; SELECT 1", "must be one SELECT"),
        ("DELETE FROM captures", "must be one SELECT"),
        ("SELEC id", "SELEC"),
        ("", "must be one SELECT"),
    ],
)
def test_a_query_that_is_wrong_is_refused(captures: Database, query: str, told: str) -> None:
    """With the database's own words; nothing is written."""
    with pytest.raises(QueryRefused, match=told):
        SqlSource(captures.url, query)
    assert len(open_captures(captures)) == ROWS


def test_a_statement_that_takes_too_long_is_ended(captures: Database) -> None:
    """And the message says which setting ended it."""
    if isinstance(captures, Postgres):
        query = "SELECT id, pg_sleep(10) IS NULL AS slept FROM captures"
    else:
        query = (
            "SELECT id, (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100000000) "
            "SELECT sum(x) FROM n) AS total FROM captures"
        )
    with pytest.raises(QueryRefused, match="timeout_s"):
        SqlSource(captures.url, query, timeout_s=0.2)


CHANGES = {
    "update": "UPDATE captures SET gain = 7 WHERE id = 60",
    "insert": "INSERT INTO captures VALUES (61, NULL, 1, 2, 'new')",
    "delete": "DELETE FROM captures WHERE id = 60",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_by_reads(captures: Database, change: str) -> None:
    """By those in hand, of rows that did not change too, and by those that another process begins."""
    source = open_captures(captures)
    assert source[0]["id"] == 2
    elsewhere = reopened(source)
    captures.run(CHANGES[change])
    for read in (lambda: source[0], lambda: elsewhere[0], source.read_all, lambda: list(source.scan())):
        assert "changed since it was opened" in read_until_noticed(read)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_alters_the_fingerprint(captures: Database, change: str) -> None:
    """As do another query, other parameters and other columns; opening it again does not."""
    before = open_captures(captures, nulls={"image": "mask"}).fingerprint()
    assert open_captures(captures, nulls={"image": "mask"}).fingerprint() == before
    assert open_captures(captures).fingerprint() != before
    captures.run(CHANGES[change])
    assert open_captures(captures, nulls={"image": "mask"}).fingerprint() != before


def test_the_fingerprint_knows_the_parameters(captures: Database) -> None:
    """Even where they select the same rows."""
    query = "SELECT id FROM captures WHERE id > $1"
    one, other = (SqlSource(captures.url, query, parameters=(least,)).fingerprint() for least in (50, 51))
    assert one != other


def test_what_counts_as_a_change_may_be_said(captures: Database) -> None:
    """With a version of their own, rows that the query leaves out may come while it is read."""
    query = "SELECT id, label FROM captures WHERE id <= 100"
    source = SqlSource(
        captures.url, query, version="SELECT count(*), max(gain) FROM captures WHERE id <= 100"
    )
    captures.run("INSERT INTO captures VALUES (102, NULL, 1, 99, 'new')")
    assert source[49]["id"] == 100
    assert len(source.read_all()["id"]) == ROWS
    captures.run("UPDATE captures SET gain = 98 WHERE id = 4")
    assert "others wrote" in read_until_noticed(lambda: source[49])


def test_rows_that_are_gone_are_told_by_their_keys(captures: Database) -> None:
    """Even where the version says that nothing changed."""
    source = open_captures(captures, version="SELECT 1")
    captures.run("DELETE FROM captures WHERE id = 6")
    assert source[0]["id"] == 2
    with pytest.raises(SourceChanged, match=r"1 of 2 are gone, or there twice, first with the keys \[6\]"):
        source.read(np.array([0, 2]))
    with pytest.raises(SourceChanged, match=r"1 of 50 are gone, first with the keys \[6\]"):
        source.read_all()


def test_rows_that_came_or_are_there_twice_are_told(database: Database) -> None:
    """Even where the version says that nothing changed."""
    database.run("CREATE TABLE plain (id integer)", "INSERT INTO plain VALUES (1), (2), (3)")
    source = SqlSource(database.url, "SELECT id FROM plain", version="SELECT 1")
    database.run("INSERT INTO plain VALUES (2)")
    for read in (source.read_all, lambda: list(source.scan(2)), lambda: source[1]):
        with pytest.raises(SourceChanged, match=r"4 came where there were 3|there twice"):
            read()
    database.run("INSERT INTO plain VALUES (9)")
    with pytest.raises(SourceChanged, match="1 came, first with the key 9"):
        source.read_all()


def test_no_rows_are_an_empty_source(captures: Database) -> None:
    """Of length 0, which can be read whole."""
    source = SqlSource(captures.url, "SELECT id, image FROM captures WHERE id < 0")
    assert (len(source), source.keys) == (0, [])
    assert len(source.read_all()["id"]) == 0
    assert list(source.scan()) == []


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_open_connections_of_their_own(captures: Database, start: str) -> None:
    """After the parent has used its own, which it goes on using."""
    source = open_captures(captures)
    assert source[0]["id"] == 2
    batches = read_in_workers(source, start)
    assert torch.equal(torch.cat([batch["id"] for batch in batches]), torch.arange(2, 102, 2))
    assert [site for batch in batches for site in batch["site"]] == expected(list(range(2, 102, 2)))["site"]
    assert source[1]["id"] == 4


def test_a_forked_child_that_exits_leaves_the_parents_connection_alone(captures: Database) -> None:
    """It drops what it inherited, by use and by its end, without a word to the server."""
    source = open_captures(captures, retries=0)
    assert source[0]["id"] == 2
    child = os.fork()
    if child == 0:
        try:
            del source
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert source[1]["id"] == 4


def test_who_is_late_to_lose_a_connection_leaves_the_new_one_alone(captures: Database) -> None:
    """Two threads wait for one connection, and the first to see it broken has made another by then."""
    source = open_captures(captures)
    old, used = source._connection.get(), []

    def read(connection: Connection) -> Connection:
        used.append(connection)
        if connection is old:
            source._connection.drop(old)
            used.append(source._connection.get())
            raise ConnectionLost("the server was restarted")
        return connection

    new = source._attempt(read)
    assert used == [old, new, new]
    assert [connection._closing.alive for connection in (old, new)] == [False, True]
    assert source._connection.get() is new


def test_threads_may_share_a_source(captures: Database) -> None:
    """They take turns on its connection, also while one of them scans."""
    source, found = open_captures(captures), list[int]()

    def read(number: int) -> None:
        found.extend(source.read(np.array([number]))["id"].tolist())

    for _ in source.scan(10):
        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(list(range(2, 18, 2)) * 5)


def test_the_url_may_come_from_a_variable(captures: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is then in no pickle, and looked up by each process."""
    monkeypatch.setenv("CAPTURES_URL", captures.url)
    source = SqlSource("env:CAPTURES_URL", "SELECT id FROM captures")
    assert captures.url.encode() not in pickle.dumps(source)
    assert reopened(source)[0]["id"] == 2
    monkeypatch.delenv("CAPTURES_URL")
    with pytest.raises(UsageError, match="CAPTURES_URL, which is not set"):
        reopened(source)[0]


@pytest.mark.parametrize("url", ["mysql://root@there/db", "sqlite:///", "captures.db", ""])
def test_a_url_of_no_database_is_refused(url: str) -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="give postgresql://user@host/database, sqlite:///file or env:NAME"):
        SqlSource(url, "SELECT 1")


def test_settings_that_cannot_be_are_refused(captures: Database) -> None:
    """A string for a tuple, a negative number of tries, a batch of nothing."""
    for wrong in ({"parameters": "abc"}, {"retries": -1}, {"timeout_s": 0}):
        with pytest.raises(UsageError):
            open_captures(captures, **wrong)
    with pytest.raises(UsageError, match="batch_rows is 0"):
        next(iter(open_captures(captures).scan(0)))
    with pytest.raises(IndexError, match="no sample 50"):
        open_captures(captures)[50]


def test_it_tells_what_it_is(captures: Database) -> None:
    """Rows, columns and where they are from."""
    told = repr(open_captures(captures))
    assert told.startswith(
        "SqlSource(50 rows of id int64, image float32[2, 3], label int64, gain float64, site text"
    )


def test_a_file_that_is_not_there_is_told(tmp_path: Any) -> None:
    """And none is made; a file of another kind is told too."""
    with pytest.raises(DatabaseUnreachable, match="there is no SQLite file"):
        SqlSource(f"sqlite:///{tmp_path}/none.db", "SELECT 1 AS id")
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.db").write_text("no database at all" * 100)
    with pytest.raises(DatabaseUnreachable, match="not a database"):
        SqlSource(f"sqlite:///{tmp_path}/text.db", "SELECT 1 AS id")
