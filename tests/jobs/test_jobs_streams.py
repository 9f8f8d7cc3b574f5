"""Streams of what happens: nothing twice, nothing left out, however they break off."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import DatabaseUnreachable
from stoker.jobs.job import Request
from stoker.jobs.server import streams
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Number, Progress, Report

from .kit import PATIENCE_S, counting
from .servers import BASE, Live, running

Told = tuple[int | None, str, Any]


class Writer:
    """A job that runs, and tells."""

    def __init__(self, store: Store, request: Request | None = None) -> None:
        self.store = store
        self.id = store.create(request or counting()).id
        self._holding = Holding(store)
        attempt = self._holding.claim(self.id, engine="test")
        assert attempt is not None
        self._token = attempt.token
        self._holding.begin(self.id, self._token, "test/1")
        self._step = self.told = 0

    def tell(self, points: int = 1, lines: int = 1) -> None:
        """So many points and lines, and how far it is."""
        self.told += 1
        numbers = []
        for _ in range(points):
            self._step += 1
            numbers.append(Number(name="train/loss", step=self._step, value=1 / self._step, t=1.0))
        texts = [(1.0, f"line {self._step}.{number}") for number in range(lines)]
        told = self._holding.beat(self.id, self._token).log_bytes
        self._holding.report(
            self.id,
            self._token,
            Report(
                points=numbers,
                lines=texts,
                log_from=told,
                log_to=told + lines,
                progress=Progress(step=self._step),
            ),
        )


@contextlib.contextmanager
def stream(server: Live, path: str, **headers: str) -> Iterator[Iterator[Told]]:
    """The events of a stream: id, kind and data."""
    connection = server.connect()
    connection.request(
        "GET", BASE + path, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )
    answer = connection.getresponse()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    try:
        yield events(answer)
    finally:
        answer.close()
        connection.close()


def events(answer: http.client.HTTPResponse) -> Iterator[Told]:
    number: int | None = None
    kind = ""
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            yield number, kind, json.loads(value)
            number, kind = None, ""


def all_of(store: Store, id_: str) -> tuple[list[int], list[int]]:
    """Ids of all points and lines of a job."""
    points, lines = store.points(id_, limit=100_000).items, store.lines(id_, limit=100_000).items
    return [one.id for one in points], [one.id for one in lines]


def test_a_stream_tells_what_happens_as_it_happens(stored_server: Live) -> None:
    """The state at once, then points, lines and progress, each with a higher id than the one before."""
    writer = Writer(stored_server.store)
    with stream(stored_server, f"/jobs/{writer.id}/stream") as told:
        first = next(told)
        assert (first[1], first[2]["state"]) == ("state", "running")
        writer.tell(points=2, lines=1)
        found = [next(told) for _ in range(4)]
    assert [kind for _, kind, _ in found] == ["point", "point", "line", "state"]
    assert found[3][2]["step"] == 2
    ids = [number for number, _, _ in [first, *found] if number is not None]
    assert ids == sorted(set(ids)) and len(ids) == 5


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reports=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_a_stream_that_breaks_off_anywhere_is_gone_on_with(
    server: Live, reports: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Whatever was written meanwhile: every point and line comes once, in order, over all its pieces."""
    writer = Writer(server.store)
    reports = [*reports, (1, 1)]
    last, points, lines = 0, list[int](), list[int]()
    for cut in [*cuts, 10**6]:
        if reports:
            writer.tell(*reports.pop(0))
        if cut == 10**6:
            for rest in reports:
                writer.tell(*rest)
        wanted_points, wanted_lines = all_of(server.store, writer.id)
        with stream(server, f"/jobs/{writer.id}/stream", Last_Event_ID=str(last)) as told:
            for _ in range(cut):
                if (points, lines) == (wanted_points, wanted_lines):
                    break
                number, kind, data = next(told)
                assert number is not None and number > last
                last = number
                if kind == "point":
                    points.append(data["id"])
                elif kind == "line":
                    lines.append(data["id"])
    assert (points, lines) == all_of(server.store, writer.id)


def test_a_stream_that_writers_race_with_misses_nothing(stored_server: Live) -> None:
    """Two jobs write while their streams are opened: from what was there to what came, without a gap."""
    writers = [Writer(stored_server.store) for _ in range(2)]
    end = threading.Event()

    def write(writer: Writer) -> None:
        for _ in range(25):
            writer.tell(points=2, lines=2)
        end.set()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for writer in writers:
        found: dict[str, list[int]] = {"point": [], "line": [], "state": []}
        with stream(stored_server, f"/jobs/{writer.id}/stream?after=0") as told:
            for number, kind, _ in told:
                assert number is not None
                found[kind].append(number)
                if len(found["point"]) == len(found["line"]) == 50:
                    break
        for thread in threads:
            thread.join()
        assert (found["point"], found["line"]) == all_of(stored_server.store, writer.id)


def test_the_stream_of_all_jobs_has_their_states(server: Live) -> None:
    """Of those there are and those that come; not their points and lines."""
    writer = Writer(server.store)
    with stream(server, "/stream") as told:
        writer.tell(points=3, lines=3)
        made = server.post("/jobs", {"workload": "sar"}).json["id"]
        server.post(f"/jobs/{made}/cancel")
        server.ask("DELETE", f"{BASE}/jobs/{made}")
        seen: list[tuple[str, str]] = []
        while not seen or seen[-1][0] != "deleted":
            _, kind, data = next(told)
            seen.append((kind, data["id"]))
    assert ("state", writer.id) in seen and seen[-1] == ("deleted", made)
    assert {kind for kind, _ in seen} <= {"state", "deleted"}


def test_a_jobs_stream_ends_when_it_is_deleted(server: Live) -> None:
    """There is nothing more to come."""
    made = server.post("/jobs", {"workload": "sar"}).json["id"]
    server.post(f"/jobs/{made}/cancel")
    with stream(server, f"/jobs/{made}/stream") as told:
        next(told)
        server.ask("DELETE", f"{BASE}/jobs/{made}")
        assert [kind for _, kind, _ in told][-1] == "deleted"


def test_many_streams_cost_as_many_queries_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's news is read by one reader, whoever follows."""
    readers: set[int | None] = set()
    asked = Store.news

    def news(self: Store, **given: Any) -> Any:
        readers.add(given["id_"])
        return asked(self, **given)

    monkeypatch.setattr(Store, "news", news)
    with running(tmp_path / "jobs") as server, contextlib.ExitStack() as open_streams:
        writer = Writer(server.store)
        all_told = [
            open_streams.enter_context(stream(server, f"/jobs/{writer.id}/stream")) for _ in range(20)
        ]
        for told in all_told:
            next(told)
        writer.tell()
        for told in all_told:
            assert [next(told)[1] for _ in range(3)] == ["point", "line", "state"]
        assert "stoker_jobs_streams{} 20" in server.ask("GET", "/metrics").raw.decode()
    assert readers == {None}


def test_a_server_that_ends_ends_its_streams(tmp_path: Path) -> None:
    """At once, so that it can end; who follows goes on with the next server, from where it was."""
    with running(tmp_path / "jobs") as server:
        writer = Writer(server.store)
        connection = server.connect()
        connection.request("GET", f"{BASE}/jobs/{writer.id}/stream")
        told = events(connection.getresponse())
        last = next(told)[0]
    assert list(told) == []
    connection.close()
    with running(tmp_path / "jobs") as server:
        store = Store.open(server.settings.store_url)
        holding = Holding(store)
        holding.report(writer.id, 1, Report(lines=[(1.0, "meanwhile")], log_from=0, log_to=9))
        with stream(server, f"/jobs/{writer.id}/stream", Last_Event_ID=str(last)) as again:
            assert next(again)[2]["text"] == "meanwhile"
        store.close()


def test_one_that_does_not_read_is_ended_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up neither the server nor the others, and misses nothing once it reads again."""
    monkeypatch.setattr(streams, "_BEHIND", 2)
    store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    writer = Writer(store)

    async def be_slow() -> bytes:
        tailer = streams.Tailer(store, lambda job: {}, every_s=0.001)
        reading = asyncio.create_task(tailer.run())
        following = tailer.follow(writer.id, None)
        told = await anext(following)
        while b"event: state" not in told:
            told += await anext(following)
        while writer.told < 10:
            writer.tell(points=1, lines=0)
            await asyncio.sleep(0.05)
        told += b"".join([part async for part in following])
        tailer.close()
        await reading
        return told

    raw = asyncio.run(be_slow())
    steps = [json.loads(line[6:])["step"] for line in raw.decode().splitlines() if '"step":' in line]
    assert 0 < len(steps) < 10 and steps == list(range(1, len(steps) + 1))
    last = max(int(line[4:]) for line in raw.decode().splitlines() if line.startswith("id: "))
    rest = [one.step for one in store.points(writer.id, after=last).items]
    assert [*steps, *rest] == list(range(1, 11))
    store.close()


@pytest.mark.parametrize("after", ["-1", "x", "99999999999999999999", "", "1.5", "%00", "1,2", "null", "[]"])
def test_a_wrong_place_to_go_on_from_is_refused(server: Live, after: str) -> None:
    """422 with the name of what is wrong, and no stream; of a job's stream as of the one of all."""
    id_ = server.post("/jobs", {"workload": "sar"}).json["id"]
    for path in ("/stream", f"/jobs/{id_}/stream"):
        for query, headers, field in (
            (f"?after={after}", {}, "after"),
            ("", {"Last-Event-ID": after}, "last-event-id"),
            (f"?after={after}&after={after}", {"Last-Event-ID": "3"}, "after"),
        ):
            told = server.get(f"{path}{query}", **headers)
            assert told.status == 422, (path, query, headers)
            assert [one["field"] for one in told.json["errors"]] == [field]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    last=st.none() | st.binary(max_size=40) | st.integers(-5, 1 << 70).map(lambda one: str(one).encode()),
    query=st.none()
    | st.binary(max_size=40)
    | st.sampled_from([b"after=1", b"after=0&x=y", b"after", b"&&=%"]),
    id_=st.none() | st.sampled_from(["0123456789ab", "x", "%2e%2e", "%00"]),
    method=st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]),
)
def test_whatever_is_asked_of_a_stream_the_server_stands(
    server: Live, last: bytes | None, query: bytes | None, id_: str | None, method: str
) -> None:
    """Any bytes as a number to go on from, as parameters, as an id: an answer that says so, never a 5xx."""
    path = f"{BASE}/stream" if id_ is None else f"{BASE}/jobs/{id_}/stream"
    target = path.encode() + (b"" if query is None else b"?" + query)
    head = method.encode() + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"" if last is None else b"Last-Event-ID: " + last + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as asking:
        asking.sendall(head + b"\r\n")
        told = asking.makefile("rb").readline()
    # 415: bytes that end the header line make a body of what is behind it.
    assert int(told.split()[1]) in (200, 400, 404, 405, 415, 422), (head, told)
    assert server.ask("GET", "/health").json["status"] == "ok"


def test_a_number_of_another_store_is_no_reason_to_be_silent(server: Live) -> None:
    """The history was put back from a copy: who saw more than there is now is told what comes, at once."""
    writer = Writer(server.store)
    ahead = str(server.store.last_id() + 10**6)
    with (
        stream(server, f"/jobs/{writer.id}/stream", Last_Event_ID=ahead) as told,
        stream(server, "/stream", Last_Event_ID=ahead) as told_of_all,
    ):
        first = next(told)
        assert (first[1], first[2]["state"]) == ("state", "running")
        writer.tell()
        assert [next(told)[1] for _ in range(3)] == ["point", "line", "state"]
        assert next(told_of_all)[2]["id"] == writer.id


def test_news_of_the_doctor_are_told_by_whatever_thread_and_never_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is away nobody can be told, nor of a job that is gone, nor after the end."""
    store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    writer = Writer(store)

    def refuse(self: Store, id_: str) -> Any:
        raise DatabaseUnreachable("away")

    async def follow() -> bytes:
        tailer = streams.Tailer(store, lambda job: {"visited": job.id})
        following = tailer.follow(writer.id, None)
        while b"event: state" not in await anext(following):
            pass
        with monkeypatch.context() as away:
            away.setattr(Store, "job", refuse)
            await asyncio.to_thread(tailer.tell, writer.id)
        await asyncio.to_thread(tailer.tell, "0123456789ab")
        await asyncio.to_thread(tailer.tell, writer.id)
        told = await anext(following)
        tailer.close()
        tailer.close()
        await asyncio.to_thread(tailer.tell, writer.id)
        return told + b"".join([part async for part in following])

    assert asyncio.run(follow()) == f'event: state\ndata: {{"visited":"{writer.id}"}}\n\n'.encode()
    store.close()
