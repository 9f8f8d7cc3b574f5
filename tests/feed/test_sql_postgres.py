"""What only a server has: its types, its passwords, writes in functions, and connections that are lost."""

# ruff: noqa: F811  fixtures are imported by name

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feed.postgres import Postgres, postgres, read_until_noticed, server  # noqa: F401  fixtures
from feed.workers import same_bits
from stoker.errors import DatabaseUnreachable, QueryRefused, SourceBroken, UsageError
from stoker.feed.sources.sql import Column, SqlSource, hide_password
from stoker.ward.postgres import PostgresServer
from stoker.ward.proxy import Proxy

pytestmark = pytest.mark.service


def one(postgres: Postgres, expression: str, **more: Any) -> Any:
    """What an expression becomes, read by key, by COPY and by a cursor: all alike."""
    query = f"SELECT 1 AS id, {expression} AS x"
    plain = SqlSource(postgres.url, query, **more)
    bound = SqlSource(postgres.url, f"{query} WHERE $1 = 'y'", parameters=("y",), **more)
    found = [plain.read(np.array([0]))["x"], plain.read_all()["x"], bound.read_all()["x"]]
    for other in found[1:]:
        assert same_bits(found[0], other) if isinstance(other, torch.Tensor) else found[0] == other
    return found[0]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("7::int2", torch.tensor([7])),
        ("-7::int4", torch.tensor([-7])),
        ("9223372036854775807::int8", torch.tensor([2**63 - 1])),
        ("1.5::float4", torch.tensor([1.5])),
        ("'NaN'::float8", torch.tensor([float("nan")], dtype=torch.float64)),
        ("0.1::numeric(10, 3)", torch.tensor([0.1], dtype=torch.float64)),
        ("true", torch.tensor([True])),
        ("'1970-01-01 00:00:01.5'::timestamp", torch.tensor([1_500_000])),
        ("'1970-01-01 01:00:00+01'::timestamptz", torch.tensor([0])),
        ("'1970-01-02'::date", torch.tensor([86_400_000_000])),
        ("'\\x0102'::bytea", torch.tensor([[1, 2]], dtype=torch.uint8)),
        ("array[1, 2, 3]::int2[]", torch.tensor([[1, 2, 3]])),
        ("array[1, 2]::int4[]", torch.tensor([[1, 2]])),
        ("array[1, -2]::int8[]", torch.tensor([[1, -2]])),
        ("array[[1, 2, 3], [4, 5, 6]]::float4[]", torch.tensor([[[1.0, 2, 3], [4, 5, 6]]])),
        ("array[0.5]::float8[]", torch.tensor([[0.5]], dtype=torch.float64)),
        ("array[0.1, 2]::numeric[]", torch.tensor([[0.1, 2]], dtype=torch.float64)),
        ("array[true, false]", torch.tensor([[True, False]])),
        ("'{}'::float4[]", torch.empty(1, 0)),
        ("'grüß'::text", ["grüß"]),
        ("'ab'::varchar(5)", ["ab"]),
        ("'00000000-0000-0000-0000-00000000000a'::uuid", ["00000000-0000-0000-0000-00000000000a"]),
        ("'{\"a\": 1}'::jsonb", ['{"a": 1}']),
    ],
)
def test_each_type_becomes_what_is_documented(postgres: Postgres, expression: str, expected: Any) -> None:
    """The same by key, by COPY and by a cursor."""
    found = one(postgres, expression)
    assert same_bits(found, expected) if isinstance(expected, torch.Tensor) else found == expected


def test_an_array_becomes_what_is_asked(postgres: Postgres) -> None:
    """Another dtype, and another shape of as many elements."""
    found = one(
        postgres, "array[1, 2, 3, 4]::float4[]", columns={"x": Column(dtype=torch.float16, shape=(2, 2))}
    )
    assert same_bits(found, torch.tensor([[[1, 2], [3, 4]]], dtype=torch.float16))


def test_a_type_that_is_no_tensor_is_refused(postgres: Postgres) -> None:
    """With how to make it one."""
    postgres.run("CREATE TYPE mood AS ENUM ('calm', 'odd')")
    for expression in ("point(1, 2)", "'odd'::mood", "array['a']"):
        with pytest.raises(QueryRefused, match=r'column \'x\' is .*"x"::text'):
            one(postgres, expression)
    assert one(postgres, "'odd'::mood::text") == ["odd"]


def test_ragged_arrays_and_holes_in_them_are_refused_by_key(postgres: Postgres) -> None:
    """A NULL inside an array is no number, whatever is said about NULL in its place."""
    postgres.run(
        "CREATE TABLE a AS SELECT i AS id, array[1, 2]::float4[] AS x FROM generate_series(1, 9) AS i"
    )
    query = "SELECT id, x FROM a"
    postgres.run("UPDATE a SET x = array[1, 2, 3] WHERE id = 4")
    with pytest.raises(
        SourceBroken, match=r"'x' has 3 elements in the row with the key 4, where float32\[2\] takes 2"
    ):
        SqlSource(postgres.url, query).read_all()
    for hole in ("array[1, NULL]", "array[NULL, NULL]::float4[]", "array[1, 2, NULL, NULL]"):
        postgres.run(f"UPDATE a SET x = {hole} WHERE id = 4")
        with pytest.raises(SourceBroken, match="'x' has a NULL inside the array in the row with the key 4"):
            SqlSource(postgres.url, query).read_all()
    source = SqlSource(postgres.url, query, nulls={"x": "mask"})
    assert source[2]["x"].tolist() == [1, 2]
    with pytest.raises(SourceBroken, match="NULL inside the array"):
        source[3]
    postgres.run("UPDATE a SET x = array[[3], [4]] WHERE id = 4", "UPDATE a SET x = NULL WHERE id = 6")
    batch = SqlSource(postgres.url, query, nulls={"x": -1}).read_all()
    assert batch["x"].tolist() == [[1, 2]] * 3 + [[3, 4], [1, 2], [-1, -1]] + [[1, 2]] * 3


@pytest.mark.parametrize("parameters", [(), (0,)])
def test_a_row_that_fails_in_the_middle_is_told(postgres: Postgres, parameters: tuple[int, ...]) -> None:
    """With the server's words, by COPY, by a cursor and by key."""
    postgres.run(
        "CREATE TABLE a AS SELECT i AS id FROM generate_series(1, 9000) AS i",
        "CREATE TABLE switch AS SELECT 1 AS divisor",
        "CREATE FUNCTION divide(i int) RETURNS int STABLE LANGUAGE sql AS "
        "'SELECT 1 / CASE WHEN i < 8000 THEN 1 ELSE divisor END FROM switch'",
    )
    query = "SELECT id, divide(id) AS x FROM a" + (" WHERE id > $1" if parameters else "")
    source = SqlSource(postgres.url, query, parameters=parameters, version="SELECT 1")
    postgres.run("UPDATE switch SET divisor = 0")
    for read in (source.read_all, lambda: source[7999]):
        with pytest.raises(QueryRefused, match="division by zero"):
            read()
    assert source[0]["id"] == 1


def test_uuids_are_keys(postgres: Postgres) -> None:
    """In the order of their text, found by their own type, so that an index serves."""
    postgres.run("CREATE TABLE u (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), n int)")
    postgres.run("INSERT INTO u (n) SELECT generate_series(1, 20)")
    source = SqlSource(postgres.url, "SELECT id, n FROM u")
    assert source.keys == sorted(source.keys)
    assert source.read(np.array([19, 3]))["id"] == [source.keys[19], source.keys[3]]
    assert source.read_all()["id"] == source.keys


def test_a_key_may_be_any_column_of_any_whole_number(postgres: Postgres) -> None:
    """It is read once, as the key and as the column that was asked for."""
    postgres.run("CREATE TABLE a AS SELECT i * 2 AS n, (10 - i)::int2 AS k FROM generate_series(1, 9) AS i")
    source = SqlSource(postgres.url, "SELECT n, k FROM a", key="k", columns={"k": Column(dtype=torch.int16)})
    assert source.keys == list(range(1, 10))
    for batch in (source.read(np.arange(9)), source.read_all()):
        assert same_bits(batch["k"], torch.arange(1, 10, dtype=torch.int16))
        assert batch["n"].tolist() == list(range(18, 0, -2))


def test_large_batches_come_in_several_blocks(postgres: Postgres) -> None:
    """Batches of Arrow are joined, whichever way they are read."""
    postgres.run(
        "CREATE TABLE big AS SELECT i AS id, decode(repeat(lpad(to_hex(i), 4, '0'), 10000), 'hex') AS x "
        "FROM generate_series(1, 1500) AS i ORDER BY -i"
    )
    source = SqlSource(postgres.url, "SELECT id, x FROM big", columns={"x": Column(dtype=torch.int16)})
    for batch in (source.read(np.arange(1500)), source.read_all()):
        assert batch["id"].tolist() == list(range(1, 1501))
        assert (batch["x"] == batch["x"][:, :1]).all()
        assert batch["x"].view(torch.uint8)[:, 1].tolist() == [number % 256 for number in range(1, 1501)]


def test_a_function_that_writes_is_refused(postgres: Postgres) -> None:
    """The transaction is read-only, and nothing was written."""
    postgres.run(
        "CREATE TABLE notes (n int)",
        "CREATE FUNCTION scribble() RETURNS int LANGUAGE sql AS 'INSERT INTO notes VALUES (1) RETURNING 1'",
    )
    with pytest.raises(QueryRefused, match="the query writes"):
        SqlSource(postgres.url, "SELECT 1 AS id, scribble() AS x")
    with pytest.raises(QueryRefused, match="must be one SELECT"):
        SqlSource(postgres.url, "WITH gone AS (DELETE FROM notes RETURNING 1 AS id) SELECT id FROM gone")
    assert postgres.server.run("SELECT count(*) FROM notes") == "0"


def test_what_others_commit_elsewhere_is_no_change(postgres: Postgres) -> None:
    """Nor what is rolled back, nor a vacuum: the rows are what they were."""
    postgres.run(
        "CREATE TABLE a AS SELECT generate_series(1, 9) AS id",
        "CREATE TABLE b (n int)",
    )
    source = SqlSource(postgres.url, "SELECT id FROM a")
    postgres.run("INSERT INTO b VALUES (1)", "BEGIN; DELETE FROM a; ROLLBACK", "VACUUM FREEZE a")
    assert source[0]["id"] == 1
    assert len(source.read_all()["id"]) == 9
    assert SqlSource(postgres.url, "SELECT id FROM a").fingerprint() == source.fingerprint()


def test_a_transaction_that_commits_late_is_noticed(postgres: Postgres) -> None:
    """Though transactions that began after it were there before: a newest number would not show it."""
    from adbc_driver_postgresql import dbapi

    postgres.run("CREATE TABLE a AS SELECT i AS id, i AS n FROM generate_series(1, 9) AS i")
    with dbapi.connect(postgres.url) as late, late.cursor() as cursor:
        cursor.execute("UPDATE a SET n = 0 WHERE id = 1")
        postgres.run("UPDATE a SET n = 5 WHERE id = 5")
        source = SqlSource(postgres.url, "SELECT id, n FROM a")
        assert source[0]["n"] == 1
        late.commit()
    assert "others wrote to its tables" in read_until_noticed(lambda: source[1])


def test_a_join_changes_with_each_of_its_tables(postgres: Postgres) -> None:
    """Views and subselects too: what counts is what the plan reads."""
    postgres.run(
        "CREATE TABLE a AS SELECT generate_series(1, 9) AS id",
        "CREATE TABLE b AS SELECT i AS id, i * 2 AS n FROM generate_series(1, 9) AS i",
        "CREATE VIEW both_of AS SELECT a.id, b.n FROM a JOIN b ON a.id = b.id",
    )
    source = SqlSource(postgres.url, "SELECT * FROM both_of")
    assert source[3]["n"] == 8
    postgres.run("UPDATE b SET n = 0 WHERE id = 9")
    assert "others wrote to its tables" in read_until_noticed(lambda: source[3])


def test_tables_that_may_not_be_read_need_a_version(postgres: Postgres) -> None:
    """Of a view without its tables there are no row versions to see; the error names the way out."""
    postgres.run(
        "DROP ROLE IF EXISTS guest",
        "CREATE ROLE guest LOGIN",
        "CREATE TABLE a AS SELECT generate_series(1, 9) AS id",
        "CREATE VIEW seen AS SELECT id FROM a",
        "GRANT USAGE ON SCHEMA public TO guest",
        "GRANT SELECT ON seen TO guest",
    )
    url = postgres.url.replace("postgres@", "guest@")
    with pytest.raises(QueryRefused, match=r"permission denied.*version='SELECT"):
        SqlSource(url, "SELECT id FROM seen")
    assert len(SqlSource(url, "SELECT id FROM seen", version="SELECT count(*) FROM seen")) == 9


def test_a_connection_that_is_ended_is_made_anew(postgres: Postgres) -> None:
    """Between two reads, nobody notices."""
    postgres.run("CREATE TABLE a AS SELECT generate_series(1, 9) AS id")
    source = SqlSource(postgres.url, "SELECT id FROM a")
    for number in range(3):
        assert source[number]["id"] == number + 1
        end_others(postgres.server)


def end_others(server: PostgresServer) -> None:
    """End every connection but the one that says so."""
    ended = server.run(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    assert ended != "0"


@pytest.mark.parametrize("parameters", [(), (0,)])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_scan_goes_on_after_its_connection_was_ended(
    postgres: Postgres, in_order: bool, parameters: tuple[int, ...]
) -> None:
    """In the middle of it, by COPY and by a cursor; every sample still comes once."""
    # More than fits into the socket and the blocks read ahead, so that the server is still sending.
    postgres.run(
        "CREATE TABLE big AS SELECT i AS id, decode(repeat('ab', 10000), 'hex') AS x "
        "FROM generate_series(1, 4000) AS i"
    )
    where = " WHERE id > $1" if parameters else ""
    source = SqlSource(postgres.url, f"SELECT id, x FROM big{where}", parameters=parameters)
    seen: list[int] = []
    for numbers, batch in source.scan(100, in_order=in_order):
        assert batch["id"].tolist() == (numbers + 1).tolist()
        if not seen:
            end_others(postgres.server)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(4000))


def test_a_server_that_is_stopped_is_waited_for() -> None:
    """A read that began while it was down succeeds once it is back; without it, the error says so."""
    with PostgresServer() as own:
        own.run("CREATE TABLE a AS SELECT generate_series(1, 9) AS id")
        source = SqlSource(own.url, "SELECT id FROM a")
        impatient = SqlSource(own.url, "SELECT id FROM a", retries=1)
        assert source[0]["id"] == 1
        own.stop()
        with pytest.raises(DatabaseUnreachable, match=r"after 2 tries: .* Is the server running"):
            impatient[0]
        back = threading.Timer(0.3, own.start)
        back.start()
        assert source[1]["id"] == 2
        back.join()
        assert impatient.read_all()["id"].tolist() == list(range(1, 10))


def test_a_connection_cut_in_an_answer_is_made_anew(postgres: Postgres) -> None:
    """The half of a batch that came is thrown away."""
    postgres.run("CREATE TABLE a AS SELECT i AS id, repeat('x', 1000) AS t FROM generate_series(1, 900) AS i")
    with Proxy(port=postgres.server.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        source = SqlSource(url, "SELECT id, t FROM a")
        reads: list[Callable[[], Any]] = [lambda: source.read(np.arange(900)), source.read_all]
        for number, read in enumerate(reads):
            # Two, for the driver may first make a short one, to ask for the server's types.
            proxy.cut(after=300_000, times=2)
            assert read()["id"].tolist() == list(range(1, 901))
            assert proxy.faults_met > number


def test_a_connection_that_never_gets_further_is_given_up(postgres: Postgres) -> None:
    """Rows that came before are no progress: the retries end."""
    postgres.run(
        "CREATE TABLE big AS SELECT i AS id, decode(repeat('ab', 10000), 'hex') AS x "
        "FROM generate_series(1, 1000) AS i"
    )
    with Proxy(port=postgres.server.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        source = SqlSource(url, "SELECT id, x FROM big", retries=2)
        proxy.cut(after=3_000_000, times=100)
        with pytest.raises(DatabaseUnreachable, match="after 3 tries"):
            source.read_all()


@pytest.fixture
def guarded(postgres: Postgres) -> Postgres:
    """A server with a role that has a password."""
    postgres.run(
        "DROP ROLE IF EXISTS guarded",
        "CREATE ROLE guarded LOGIN PASSWORD 'open sesame/1'",
        "CREATE TABLE a AS SELECT generate_series(1, 9) AS id",
        "GRANT USAGE ON SCHEMA public TO guarded",
        "GRANT SELECT ON a TO guarded",
    )
    postgres.server.require_password("guarded")
    return postgres


def test_a_password_is_used_and_never_shown(guarded: Postgres) -> None:
    """Neither right nor wrong is it in a message or in the source's own words."""
    right = guarded.url.replace("postgres@", "guarded:open%20sesame%2F1@")
    source = SqlSource(right, "SELECT id FROM a")
    assert source[0]["id"] == 1
    assert "sesame" not in repr(source)
    assert "guarded:***@" in repr(source)
    with pytest.raises(DatabaseUnreachable, match="password authentication failed") as wrong:
        SqlSource(guarded.url.replace("postgres@", "guarded:swordfish@"), "SELECT id FROM a")
    with pytest.raises(DatabaseUnreachable, match="no password supplied"):
        SqlSource(guarded.url.replace("postgres@", "guarded@"), "SELECT id FROM a")
    assert "swordfish" not in str(wrong.value)


def test_a_service_file_keeps_the_password_out(
    guarded: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq reads it: the source and its pickles know the service's name only."""
    file = tmp_path / "services"
    folder = guarded.url.partition("host=")[2].partition("&")[0]
    file.write_text(
        f"[store]\nhost={folder}\nport={guarded.server.port}\ndbname=postgres\n"
        "user=guarded\npassword=open sesame/1\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    assert SqlSource("postgresql:///?service=store", "SELECT id FROM a")[8]["id"] == 9
    with pytest.raises(DatabaseUnreachable, match='definition of service "shop" not found'):
        SqlSource("postgresql:///?service=shop", "SELECT id FROM a")


@pytest.mark.parametrize("url", ["postgresql://u:p@ss@host/db", "postgresql://u:pa/ss@host/db"])
def test_a_password_that_would_be_taken_for_something_else_is_refused(url: str) -> None:
    """Before any part of it is looked up as a host and printed."""
    with pytest.raises(UsageError, match="write @ as %40") as refused:
        SqlSource(url, "SELECT 1 AS id")
    assert "ss" not in str(refused.value).replace("password", "")


def test_secrets_are_hidden_wherever_they_stand() -> None:
    """In the middle of a URL and among its options."""
    assert (
        hide_password("postgresql://u:p%40@h/d?password=x&a=b") == "postgresql://u:***@h/d?password=***&a=b"
    )
    assert hide_password("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"


def test_servers_and_databases_that_are_not_there_are_told(postgres: Postgres) -> None:
    """At once where trying again cannot help, else after the retries."""
    with pytest.raises(DatabaseUnreachable, match='database "nowhere" does not exist'):
        SqlSource(postgres.url.replace("/postgres?", "/nowhere?"), "SELECT 1 AS id")
    with pytest.raises(DatabaseUnreachable, match=r"after 2 tries: .*Connection refused"):
        SqlSource("postgresql://u:secret@127.0.0.1:1/db", "SELECT 1 AS id", retries=1)
    with pytest.raises(DatabaseUnreachable, match="invalid URI query parameter"):
        SqlSource(postgres.url + "&colour=red", "SELECT 1 AS id")


def test_a_parameter_that_sql_does_not_know_is_refused(postgres: Postgres) -> None:
    """With the parameters as they were given."""
    with pytest.raises(UsageError, match=r"parameters \(<object"):
        SqlSource(postgres.url, "SELECT 1 AS id WHERE $1 = 1", parameters=(object(),))
    with pytest.raises(QueryRefused, match="parameter"):
        SqlSource(postgres.url, "SELECT 1 AS id WHERE $1 = 1 AND $2 = 2", parameters=(1,))
