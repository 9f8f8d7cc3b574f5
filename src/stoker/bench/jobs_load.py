"""A load on a jobs server: requests at a fixed rate over a few connections, and streams that stay open.

Requests are sent by the clock, whether or not earlier ones were answered, and each is timed from the moment
it was due: a server that stops for a second is charged with all the requests of that second.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stoker.jobs.server.serving import count_memory

_BASE = "/api/training"
_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send: `rate` requests a second for `seconds`, beside `streams` that are open."""

    rate: float
    seconds: float
    streams: int
    connections: int = 32
    seed: int = 0


@dataclass(kw_only=True)
class Found:
    """What came of it. Times are seconds from when a request was due to the last byte of its answer."""

    seconds: list[float] = field(default_factory=list)
    by_kind: dict[str, list[float]] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    # By how much a request was sent late: the load's own trouble, which is in its time too.
    late: list[float] = field(default_factory=list)
    events: int = 0
    broken_streams: int = 0
    lasted: float = 0.0


Ask = tuple[str, str, str, bytes]


class Mix:
    """What people ask of such a server: mostly how a job stands, sometimes for a new one."""

    def __init__(self, seed: int, jobs: Sequence[str]) -> None:
        self._chance, self._jobs, self._made = random.Random(seed), jobs, 0
        self._memory = count_memory()

    def next(self) -> Ask:
        """Kind, method, path and body."""
        id_ = self._chance.choice(self._jobs)
        kinds: tuple[tuple[int, str, Callable[[], Ask]], ...] = (
            (40, "show", lambda: ("show", "GET", f"{_BASE}/jobs/{id_}", b"")),
            (25, "list", lambda: ("list", "GET", f"{_BASE}/jobs?limit=20", b"")),
            (15, "metrics", lambda: ("metrics", "GET", f"{_BASE}/jobs/{id_}/metrics?limit=500", b"")),
            (10, "logs", lambda: ("logs", "GET", f"{_BASE}/jobs/{id_}/logs?last=100", b"")),
            (5, "health", lambda: ("health", "GET", "/health", b"")),
            (5, "create", self._create),
        )
        [(_, _, make)] = self._chance.choices(kinds, [weight for weight, _, _ in kinds])
        return make()

    def _create(self) -> Ask:
        self._made += 1
        # It stays in the queue: never is all of a machine's memory free.
        body = {"workload": "sar", "job_name": f"load {self._made}", "ram_bytes": self._memory}
        return "create", "POST", f"{_BASE}/jobs", json.dumps(body).encode()


async def send(url: str, load: Load, jobs: Sequence[str]) -> Found:
    """The whole load; half of the streams follow all jobs, half one of them."""
    found, mix = Found(), Mix(load.seed, jobs)
    address = urlsplit(url)
    place = (address.hostname or "127.0.0.1", address.port or 80)
    waiting: asyncio.Queue[tuple[float, Ask] | None] = asyncio.Queue()
    paths = [
        f"{_BASE}/stream" if number % 2 else f"{_BASE}/jobs/{jobs[0]}/stream"
        for number in range(load.streams)
    ]
    streams = [asyncio.create_task(_follow(place, path, found)) for path in paths]
    senders = [asyncio.create_task(_send_all(place, waiting, found)) for _ in range(load.connections)]
    began = time.perf_counter()
    for number in range(int(load.rate * load.seconds)):
        due = began + number / load.rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        waiting.put_nowait((due, mix.next()))
    for _ in senders:
        waiting.put_nowait(None)
    await asyncio.gather(*senders)
    found.lasted = time.perf_counter() - began
    found.broken_streams = sum(stream.done() for stream in streams)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return found


async def _send_all(
    place: tuple[str, int], waiting: "asyncio.Queue[tuple[float, Ask] | None]", found: Found
) -> None:
    """One connection, kept open: the next request that is due, as soon as the last was answered."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        while (item := await waiting.get()) is not None:
            due, (kind, method, path, body) = item
            found.late.append(time.perf_counter() - due)
            writer.write(_request(method, path, body))
            async with asyncio.timeout(_PATIENCE_S):
                status = await _read_answer(reader)
            took = time.perf_counter() - due
            found.seconds.append(took)
            found.by_kind.setdefault(kind, []).append(took)
            found.statuses[status] = found.statuses.get(status, 0) + 1
    finally:
        writer.close()


async def _follow(place: tuple[str, int], path: str, found: Found) -> None:
    """A stream, until it is ended; its events are counted."""
    reader, writer = await asyncio.open_connection(*place, limit=1 << 20)
    try:
        writer.write(_request("GET", path, b""))
        while line := await reader.readline():
            found.events += line.startswith(b"event: ")
    finally:
        writer.close()


def _request(method: str, path: str, body: bytes) -> bytes:
    kind = "Content-Type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _read_answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    await reader.readexactly(size)
    return int(head.split(" ", 2)[1])


def to_json(found: Found) -> dict[str, Any]:
    """A run, for the result's file."""
    return {
        "requests": len(found.seconds),
        "rate": len(found.seconds) / found.lasted,
        "statuses": found.statuses,
        "p50_ms": quantile(found.seconds, 0.5) * 1e3,
        "p95_ms": quantile(found.seconds, 0.95) * 1e3,
        "p99_ms": quantile(found.seconds, 0.99) * 1e3,
        "max_ms": max(found.seconds) * 1e3,
        "late_p99_ms": quantile(found.late, 0.99) * 1e3,
        "p99_ms_by_kind": {
            kind: quantile(times, 0.99) * 1e3 for kind, times in sorted(found.by_kind.items())
        },
        "events": found.events,
        "broken_streams": found.broken_streams,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.99)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1e6) * len(ordered) // 1_000_000) - 1)]
