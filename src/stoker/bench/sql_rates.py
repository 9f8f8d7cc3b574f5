"""How fast rows of a PostgreSQL server become tensors, beside a raw COPY of them and a query for each.

All on one server of this machine: rows of 7 x 64 floats as bytea (or float4[]) with a label. Every way reads
the same rows; ways are alternated, and a rate is of rows over wall time, connecting included. All but the far
ones go by the server's Unix socket.

`feed` is what a user waits for: a source is made, and a feed over it that holds all rows in memory; its time
ends when they are there and the first batch has come. What of that is the source's making (passes for NULLs,
for keys, for the state of the tables) is `open`; `held` is the feed over a source that is made already.
`bulk` and `scan` are two ways to read everything from such a source: all in one batch, and batch by batch.

A raw COPY is `COPY (SELECT id, x, label FROM …) TO STDOUT (FORMAT binary)`. Thrown away (psql to /dev/null,
psycopg row by row) it is the most that the server sends to anybody, and what a bulk read is held against: the
stricter one, for it is spared the memory that a bulk read fills. Kept (psql into a file in memory, psycopg in
a list of rows) it stands beside.

Before each way as much memory as the rows take is touched and let go: the host of a virtual machine takes
free memory back after two seconds, and to get it again took 0 to 500 ms by chance (180 MB).
"""

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from stoker.errors import BenchFailed, MissingExtra
from stoker.feed import Feed
from stoker.feed.sources.sql import Column, SqlSource
from stoker.ward.postgres import PostgresServer
from stoker.ward.proxy import Proxy

SHAPE = (7, 64)
# Half there and half back.
TRIP_S = 0.001
TABLES = {"bytea": "captures_bytea", "float4": "captures_float4"}


def fill(server: PostgresServer, rows: int) -> None:
    """A table of each kind with the same values, in the order of the key, vacuumed."""
    import pyarrow
    from adbc_driver_postgresql import dbapi

    values = np.random.default_rng(0).standard_normal((rows, 7 * 64)).astype(np.float32)
    flat = pyarrow.array(values.reshape(-1))
    lists = pyarrow.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * values.shape[1], flat)
    column = {"bytea": pyarrow.array([row.tobytes() for row in values], pyarrow.binary()), "float4": lists}
    keys, labels = pyarrow.array(np.arange(rows)), pyarrow.array(np.arange(rows) % 10)
    for kind, table in TABLES.items():
        shape = "bytea" if kind == "bytea" else "float4[]"
        server.run(f"CREATE TABLE {table} (id int8 PRIMARY KEY, x {shape}, label int8)")
        with dbapi.connect(server.url) as connection, connection.cursor() as cursor:
            made = pyarrow.table({"id": keys, "x": column[kind], "label": labels})
            cursor.adbc_ingest(table, made, mode="append")
            connection.commit()
    server.run("VACUUM ANALYZE")


def open_source(url: str, kind: str) -> SqlSource:
    """The table as a source of samples."""
    return SqlSource(
        url,
        f"SELECT id, x, label FROM {TABLES[kind]}",
        columns={"x": Column(dtype=torch.float32, shape=SHAPE)},
    )


def read_bulk(source: SqlSource) -> int:
    """Everything in one batch of tensors."""
    return len(source.read_all()["label"])


def read_scan(source: SqlSource, *, in_order: bool) -> int:
    """Everything in batches of tensors, each let go before the next."""
    return sum(len(numbers) for numbers, _ in source.scan(in_order=in_order))


def read_feed(source: SqlSource, opened: ExitStack) -> int:
    """Everything in a feed's memory, and the first batch; who has `opened` closes it."""
    feed = opened.enter_context(closing(Feed(source, batch_size=256, tier="ram", device="cpu")))
    next(iter(feed))
    if feed.tier != "ram":
        raise BenchFailed(f"the rows are not held in memory: {feed.why}")
    return len(source)


def read_batches(source: SqlSource, batches: int, size: int = 256) -> int:
    """Batches of random samples, each by its keys."""
    chance = np.random.default_rng(0)
    return sum(len(source.read(chance.integers(0, len(source), size))["label"]) for _ in range(batches))


def copy_by_psql(server: PostgresServer, kind: str, rows: int, *, keep: bool = False) -> int:
    """A binary COPY by PostgreSQL's own client, thrown away or kept in a file in memory."""
    copied = f"COPY (SELECT id, x, label FROM {TABLES[kind]}) TO STDOUT (FORMAT binary)"
    kept = os.memfd_create("rows") if keep else os.open(os.devnull, os.O_WRONLY)
    try:
        subprocess.run([server.programs / "psql", server.url, "-X", "-c", copied], stdout=kept, check=True)
    finally:
        os.close(kept)
    return rows


def copy_by_psycopg(server: PostgresServer, kind: str, rows: int, *, keep: bool = False) -> int:
    """A binary COPY by the usual client of Python, each row as bytes, thrown away or kept in memory."""
    psycopg = _psycopg()
    copied = f"COPY (SELECT id, x, label FROM {TABLES[kind]}) TO STDOUT (FORMAT binary)"
    with (
        psycopg.connect(server.url) as connection,
        connection.cursor() as cursor,
        cursor.copy(copied) as copy,
    ):
        for _ in list(copy) if keep else copy:
            pass
    return rows


def query_each(url: str, kind: str, rows: int, queries: int) -> int:
    """One query a sample, prepared and in binary: what a dataset's `__getitem__` does at its best."""
    psycopg = _psycopg()
    asked = f"SELECT x, label FROM {TABLES[kind]} WHERE id = %s"
    chance = random.Random(0)
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor(binary=True) as cursor:
        for _ in range(queries):
            cursor.execute(asked, [chance.randrange(rows)], prepare=True)
            data, _label = cursor.fetchone()
            torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(SHAPE)
    return queries


def touch(rows: int) -> None:
    """Memory for all rows, had and let go, so that the machine has it at hand."""
    np.empty((rows, *SHAPE), np.float32).fill(0)


class Relay:
    """Forwards a port to the server's and holds every piece back for half a trip, each way.

    In threads, for the proxy's event loop counts in milliseconds. One piece waits for the one before it:
    right for a question and its answer, and no measure of throughput.
    """

    def __init__(self, port: int, trip_s: float) -> None:
        self._server, self._half = port, trip_s / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._server)) as far:
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
            back.start()
            self._forward(near, far)
            back.join()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(1 << 16):
                time.sleep(self._half)
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side is gone, and with it who would wait


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as missing:
        raise MissingExtra("psycopg[binary]", "bench", "comparing with a query for each sample") from missing
    return psycopg


def measure(
    rows: int = 100_000, repeats: int = 5, queries: int = 1000, *, seconds: float = 0.0
) -> list[dict[str, float]]:
    """Rates in rows a second, one dict a repeat: at least so many, and for so long."""
    found: list[dict[str, float]] = []
    with (
        PostgresServer() as server,
        Proxy(port=server.port, delay_s=TRIP_S / 2) as proxy,
        Relay(server.port, TRIP_S) as relay,
        ExitStack() as opened,
    ):
        fill(server, rows)
        far = "postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable"
        sources = {kind: open_source(server.url, kind) for kind in TABLES}
        far_source = open_source(far.format(proxy.port), "bytea")
        ways: dict[str, Callable[[], int]] = {}
        for kind, source in sources.items():
            ways |= {
                f"{kind}_copy_psql": partial(copy_by_psql, server, kind, rows),
                f"{kind}_bulk": partial(read_bulk, source),
                f"{kind}_copy_psql_kept": partial(copy_by_psql, server, kind, rows, keep=True),
                f"{kind}_copy_psycopg": partial(copy_by_psycopg, server, kind, rows),
                f"{kind}_copy_psycopg_kept": partial(copy_by_psycopg, server, kind, rows, keep=True),
            }
        ways |= {
            "bytea_feed": lambda: read_feed(open_source(server.url, "bytea"), opened),
            "bytea_held": partial(read_feed, sources["bytea"], opened),
            "bytea_open": lambda: len(open_source(server.url, "bytea")),
            "bytea_scan": partial(read_scan, sources["bytea"], in_order=False),
            "bytea_scan_in_order": partial(read_scan, sources["bytea"], in_order=True),
            "bytea_batches": partial(read_batches, sources["bytea"], 20),
            "bytea_far_bulk": partial(read_bulk, far_source),
            "bytea_far_batches": partial(read_batches, far_source, 20),
            "bytea_far_query_each": partial(query_each, far.format(relay.port), "bytea", rows, queries),
        }
        began = time.monotonic()
        while len(found) < repeats or time.monotonic() - began < seconds:
            run = {}
            for name, way in ways.items():
                touch(rows)
                begun = time.perf_counter()
                read = way()
                run[name] = read / (time.perf_counter() - begun)
                opened.close()
            found.append(run)
    return found
