"""A feed over objects of a real S3 server: requests under way, trouble in mid-epoch, a run that is killed."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.feed.per_process import PerProcess
from stoker.feed.sources import objects
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.objects import FILES_IN_FLIGHT, IN_FLIGHT, NEAR_IN_FLIGHT, Store
from stoker.ward.proxy import Proxy

from .s3 import S3Server

service = pytest.mark.service
OBJECTS, SIZE, BATCH = 240, 5000, 16
CLOSED = b"Connection: close\r\n\r\n"


class Objects(Source):
    """Objects of one size; each is full of its number. `asked` counts those read from the store."""

    def __init__(self, path: str, options: Mapping[str, Any], in_flight: int = 8) -> None:
        self.store = Store(f"s3://{path}", options=options, in_flight=in_flight)
        self.in_flight = in_flight
        self.asked = 0

    def __len__(self) -> int:
        return OBJECTS

    def read(self, indices: Indices) -> Any:
        self.asked += len(indices)
        return torch.from_numpy(self.store.get_rows([str(number) for number in indices.tolist()], SIZE))

    def fingerprint(self) -> str:
        return self.store.url


@pytest.fixture
def filled(s3_server: S3Server, prefix: str) -> str:
    """Where the objects are."""
    store = s3_server.store(prefix)
    for number in range(OBJECTS):
        store.put(str(number), number.to_bytes(2, "little") * (SIZE // 2))
    return prefix


def feed_over(source: Source, cache: Path | None) -> stoker.Feed:
    return stoker.Feed(source, batch_size=BATCH, shuffle=True, tier="source", cache=cache, device="cpu")


def numbers_of(batch: torch.Tensor) -> list[int]:
    """Which objects these are; every byte of each is looked at."""
    words = batch.numpy().view(np.uint16)
    assert (words == words[:, :1]).all()
    found: list[int] = words[:, 0].tolist()
    return found


TROUBLE = {
    "cut": lambda proxy: proxy.cut(after=1500, times=5),
    "503": lambda proxy: proxy.answer(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n" + CLOSED, times=5),
    "closed": lambda proxy: proxy.answer(b"", times=5),
    "short": lambda proxy: proxy.answer(
        b'HTTP/1.1 200 OK\r\nETag: "other"\r\nLast-Modified: Sun, 15 Nov 2026 13:27:54 GMT\r\n'
        b"Content-Length: 5000\r\n" + CLOSED + b"abc",
        times=2,
    ),
}


@service
@pytest.mark.parametrize("kind", TROUBLE)
@pytest.mark.parametrize("cached", [False, True])
def test_trouble_in_mid_epoch_loses_and_doubles_nothing(
    kind: str, cached: bool, s3_server: S3Server, filled: str, tmp_path: Path
) -> None:
    """Connections cut off, 503 and short bodies are met by retries: every sample comes once, and whole."""
    with Proxy(port=s3_server.port) as proxy:
        source = Objects(filled, S3Server(proxy.port).options())
        feed = feed_over(source, tmp_path if cached else None)
        seen: list[int] = []
        for step, batch in enumerate(feed):
            seen += numbers_of(batch)
            if step in (2, 7):
                TROUBLE[kind](proxy)
        assert sorted(seen) == list(range(OBJECTS))
        assert proxy.faults_met >= 2
        asked = source.asked
        again = [number for batch in feed for number in numbers_of(batch)]
        assert sorted(again) == list(range(OBJECTS))
        assert source.asked == asked + (0 if cached else OBJECTS)


_RUN = f"""
import pickle, sys
from {__name__} import feed_over
source, cache = pickle.loads(bytes.fromhex(sys.argv[1]))
for step, _ in enumerate(feed_over(source, cache)):
    print(step, flush=True)
"""


@service
@pytest.mark.parametrize("steps", [1, 6, 13])
def test_a_run_killed_in_its_first_epoch_leaves_what_it_read(
    steps: int, s3_server: S3Server, filled: str, tmp_path: Path
) -> None:
    """The next start reads from the store only what is not on disk: at most what had not been handed out."""
    told = pickle.dumps((Objects(filled, s3_server.options()), tmp_path)).hex()
    command, path = [sys.executable, "-c", _RUN, told], {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **path}) as child:
        assert child.stdout is not None
        while child.stdout.readline() != f"{steps - 1}\n":
            assert child.poll() is None
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    source = Objects(filled, s3_server.options())
    feed = feed_over(source, tmp_path)
    seen = [number for batch in feed for number in numbers_of(batch)]
    assert sorted(seen) == list(range(OBJECTS))
    looked_at = 1  # for the layout of a sample
    assert source.asked <= OBJECTS - steps * BATCH + looked_at
    asked = source.asked
    assert sorted(number for batch in feed for number in numbers_of(batch)) == list(range(OBJECTS))
    assert source.asked == asked


class Waiting(Source):
    """Samples that come when `together` reads wait for them, and not before."""

    def __init__(self, in_flight: int, together: int) -> None:
        self.in_flight = in_flight
        self.barrier = threading.Barrier(together)

    def __len__(self) -> int:
        return 120

    def read(self, indices: Indices) -> Any:
        self.barrier.wait(timeout=30)
        return torch.from_numpy(indices.copy())

    def fingerprint(self) -> str:
        return "waiting"


@pytest.mark.parametrize(("in_flight", "batch_size", "batches"), [(0, 5, 2), (20, 20, 2), (28, 8, 5)])
def test_small_batches_are_read_ahead_until_all_requests_are_made(
    in_flight: int, batch_size: int, batches: int
) -> None:
    """Beside the batch that is being completed, as many as make up what the source can have under way."""
    waiting = Waiting(in_flight, batches)
    feed = stoker.Feed(waiting, batch_size=batch_size, tier="source", device="cpu")
    assert sorted(int(number) for batch in feed for number in batch) == list(range(120))


def test_far_stores_get_more_requests_than_folders(tmp_path: Path) -> None:
    """A trip is waited for by more threads than a disk; who says how many is obeyed."""
    assert Store("s3://bucket").in_flight == IN_FLIGHT > FILES_IN_FLIGHT == Store(tmp_path).in_flight
    assert Store("s3://bucket", in_flight=7).in_flight == 7


class Together:
    """A store's client that answers when it is asked for so many objects at once; the most that it was."""

    def __init__(self, together: int) -> None:
        self.barrier = threading.Barrier(together)
        self.now = self.most = 0
        self.counting = threading.Lock()

    def get(self, key: str) -> memoryview:
        """Its name."""
        with self.counting:
            self.now += 1
            self.most = max(self.most, self.now)
        self.barrier.wait(timeout=30)
        with self.counting:
            self.now -= 1
        return memoryview(key.encode())


@pytest.mark.parametrize(
    ("trips", "in_flight", "together"),
    [
        ([0.030] * 32 + [0.002] * 32, None, NEAR_IN_FLIGHT),  # half of them connect first
        ([0.026] * 64, None, IN_FLIGHT),
        ([0.001] * 8 + [0.026] * 56, None, IN_FLIGHT),  # a cache on the way had some
        ([0.002] * 63, None, NEAR_IN_FLIGHT),
        ([0.026] * 63, None, NEAR_IN_FLIGHT),
        ([0.026] * 64, 64, 64),
    ],
)
def test_a_store_that_is_far_is_asked_for_more_objects_at_once(
    trips: list[float], in_flight: int | None, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its first answers have told; who says how many is obeyed."""
    store, client = Store("s3://bucket", in_flight=in_flight), Together(together)
    monkeypatch.setattr(store, "_client", PerProcess(lambda: client))
    for trip in trips:
        if store._first is not None:
            store._learn(store._first, trip)
    monkeypatch.setattr(store, "_first", None)
    keys = [str(number) for number in range(2 * IN_FLIGHT)]
    assert [key.encode() for key in keys] == store.get_many(keys)
    assert client.most == together


def test_requests_under_way_are_answered_when_a_store_turns_out_to_be_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The threads that make them are let go of, and end once they have."""
    store, client = Store("s3://bucket"), Together(NEAR_IN_FLIGHT)
    monkeypatch.setattr(store, "_client", PerProcess(lambda: client))
    monkeypatch.setattr(objects, "_NEAR_S", 0.0)
    keys = [str(number) for number in range(2 * IN_FLIGHT)]
    assert [key.encode() for key in keys] == store.get_many(keys)
    assert client.most == NEAR_IN_FLIGHT
    assert store.threads._max_workers == IN_FLIGHT
