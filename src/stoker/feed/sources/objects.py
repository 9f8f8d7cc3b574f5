"""One client for objects wherever they lie: s3, gcs, azure, http, or files in a folder.

    store = Store("s3://bucket/imagenet/train", options={"region": "eu-central-1"})
    for entry in store.list(): ...
    batch = store.get_many(["n01440764/a.jpg", "n01443537/b.jpg"])
    rows = store.get_rows(["0", "1", "2"], size=100_000)      # objects of one size, as rows of an array

Credentials come from the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_…)
or from `options`, in obstore's words. A store pickles as its address and options: every process connects
for itself. Keys are relative to the address and have `/` between their parts.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from stoker.errors import SourceChanged, StoreError, UsageError
from stoker.feed.arguments import checked_count, checked_path, expanded
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.listing import Entry, Listing, Reading
from stoker.feed.sources.object_folder import FolderClient
from stoker.feed.sources.object_remote import RemoteClient, shown_url

# Requests in flight, by Little's law: a GET of 100 KB costs 0.2 ms of CPU time here, so that one core can do
# 5,000 a second, and at 25 ms a trip that takes 125 of them. With 25 ms each way 64, 128 and 256 threads
# brought 941, 1,478 and 1,623 a second.
IN_FLIGHT = 128
# Where a trip is short, few bring as much and cost less: from a server on loopback 32, 64 and 128 brought
# 4,954, 4,744 and 4,546 objects of 100 KB a second, at 123, 143 and 155 us of CPU time each (medians of 5 in
# turns, 2 cores). So few are asked for first, and of the first answers a quarter tells: those of a cache on
# the way, or of tiny objects, are fewer, and half of them waited for a connection.
NEAR_IN_FLIGHT, _NEAR_S = 32, 0.020
_TOLD_BY = 64
# Files of a folder wait for a disk, not for a trip.
FILES_IN_FLIGHT = 32
# Of a folder, so many files are read by a thread at one go where there are enough for all: to hand one over
# takes as long as to read it from the page cache (some 50 us).
_FILES_AT_ONCE = 4
# For a body of the size that was listed.
_TRIES = 3
# With backoff from 0.1 s, doubling with jitter up to 10 s: some 30 s in all.
RETRIES = 8
REMOTE = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "http", "https")


class Client(Protocol):
    """What a store is made of: one connection, or one folder."""

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Every object below `prefix`, which ends where a part of a key does."""

    def folders(self) -> tuple[list[str], list[Entry]]:
        """The first parts of all keys that have several, and the objects whose keys have one."""

    def open(self, key: str) -> Reading:
        """Begin to read an object."""

    def get(self, key: str) -> memoryview:
        """All of an object, in memory that nobody writes to."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """The bytes from each start to before each stop, cut off where the object ends."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whole or not at all."""


class Store:
    """The objects under an address: `s3://bucket/prefix`, `gs://…`, `az://…`, `https://…`, or a folder.

    `in_flight` requests are made at once, in each process that uses the store; unless it is given, fewer at
    first, and of a store that is near. What they can bring is in_flight / (seconds a request takes): a store
    that is farther than most wants more.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        options: Mapping[str, Any] | None = None,
        in_flight: int | None = None,
        retries: int = RETRIES,
    ) -> None:
        self.folder = folder_of(url)
        told = in_flight is not None or self.folder is not None
        if in_flight is None:
            in_flight = IN_FLIGHT if self.folder is None else FILES_IN_FLIGHT
        self.in_flight = checked_count("in_flight", in_flight, "requests")
        checked_count("retries", retries, "tries after the first", least=0)
        self._at_once = self.in_flight if told else NEAR_IN_FLIGHT
        # What each of the first answers took; None once they have told, or where there is nothing to tell.
        self._first: deque[float] | None = None if told else deque()
        self.url = str(self.folder) if self.folder is not None else shown_url(str(url)).rstrip("/")
        connect: Callable[[], Client] = (
            partial(FolderClient, self.folder)
            if self.folder is not None
            else partial(RemoteClient, str(url), dict(options or {}), retries)
        )
        self._client = PerProcess(connect)
        self._threads = {
            count: PerProcess(partial(ThreadPoolExecutor, count, thread_name_prefix="stoker-get"))
            for count in (self.in_flight, self._at_once)
        }

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def threads(self) -> ThreadPoolExecutor:
        """For as many requests at once as are of use there."""
        return self._threads[self._at_once].get()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object whose key begins with the parts of `prefix`, page by page, in no certain order."""
        return self._client.get().entries(prefix.strip("/"))

    def folders(self) -> Sequence[str]:
        """The first parts of the keys, sorted: in a set of images, its classes."""
        return sorted(self._client.get().folders()[0])

    def gather(self, folders: Iterable[str] | None = None) -> Listing:
        """List everything, or what lies in these first-level folders, many folders at a time."""
        loose: list[Entry] = []
        if folders is None:
            folders, loose = self._client.get().folders()
        # A page of an S3 listing has 1,000 keys and comes after the one before it; folders do not wait.
        listings = self.threads.map(lambda folder: Listing.gather(self.list(folder)), sorted(folders))
        return Listing.join([Listing.gather(loose), *listings])

    def open(self, key: str) -> Reading:
        """Begin to read an object that need not fit in memory."""
        return self._client.get().open(key)

    def get(self, key: str) -> bytes:
        """All of an object."""
        return bytes(self.view(key))

    def view(self, key: str, size: int | None = None) -> memoryview:
        """All of an object where the client has put it: without the copy that `get` makes.

        With the size that was listed, an answer of another one is asked for again: a store, or something
        before it, may break off a body and call it whole. SourceChanged where it stays so.
        """
        for _ in range(_TRIES):
            data = self._get(key)
            if size is None or len(data) == size:
                return data
        raise SourceChanged(
            f"{key!r} in {self.url} has {len(data)} bytes where {size} were listed: it was changed, or the "
            "store breaks off its answers; make the source again"
        )

    def fetch(self, keys: Sequence[str], sizes: Sequence[int] | None = None) -> Iterator[memoryview]:
        """All of these objects, in this order, many requests in flight; the first error ends it.

        `sizes` are those that were listed (see `view`).
        """
        wanted = [None] * len(keys) if sizes is None else sizes
        some = min(_FILES_AT_ONCE, len(keys) // self.in_flight) if self.folder is not None else 1
        if some < 2:
            return self.threads.map(self.view, keys, wanted)
        parts = range(0, len(keys), some)
        return chain.from_iterable(
            self.threads.map(
                self._view_some,
                [keys[at : at + some] for at in parts],
                [wanted[at : at + some] for at in parts],
            )
        )

    def _view_some(self, keys: Sequence[str], sizes: Sequence[int | None]) -> Sequence[memoryview]:
        return [self.view(key, size) for key, size in zip(keys, sizes, strict=True)]

    def get_each(self, keys: Sequence[str], take: Callable[[int, memoryview], None]) -> None:
        """Have `take` called with the place and the bytes of each of these, as they come.

        It is called by the threads that make the requests, several at a time. The first error ends it.
        """
        count = self._at_once
        threads = self._threads[count].get()
        places = iter(list(enumerate(keys)))  # a list's iterator gives each item once, whichever thread asks
        work = partial(self._get_some, places, take)
        # Those of the next batch are queued behind these, so that requests never run dry between batches.
        jobs = [threads.submit(work) for _ in range(min(count, len(keys)))]
        wait(jobs)
        for job in jobs:
            job.result()

    def get_rows(self, keys: Sequence[str], size: int) -> NDArray[np.uint8]:
        """All of these objects, of `size` bytes each, as the rows of an array."""
        # Here, since it brings torch: staging one file takes 0.35 s of CPU time without it, and 3.0 with it.
        from stoker.feed.tiers.batch_memory import fresh_rows

        # In memory of batches that are gone. The system fills new memory with zeros first: 75 of the
        # 430 us of CPU time that an object of 100 KB cost here with a cache on disk. By way of its buffer, so
        # that whatever numpy or torch makes of the rows keeps the memory in use.
        rows: NDArray[np.uint8] = np.asarray(fresh_rows(len(keys), size).data)

        def put(place: int, data: memoryview) -> None:
            if len(data) != size:
                raise SourceChanged(
                    f"{keys[place]!r} in {self.url} has {len(data)} bytes where {size} were expected; list "
                    "the store again"
                )
            rows[place] = np.frombuffer(data, np.uint8)

        self.get_each(keys, put)
        return rows

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes]:
        """All of these objects, in this order; one that is named twice is read once."""
        found: dict[str, bytes] = {}
        wanted = list(dict.fromkeys(keys))
        self.get_each(wanted, lambda place, data: found.__setitem__(wanted[place], bytes(data)))
        return [found[key] for key in keys]

    def _get_some(self, places: Iterator[tuple[int, str]], take: Callable[[int, memoryview], None]) -> None:
        """One thread's part: the next of what is left, until nothing is."""
        try:
            for place, key in places:
                take(place, self._get(key))
        except BaseException:
            deque(places, maxlen=0)  # nothing is left for the others either
            raise

    def _get(self, key: str) -> memoryview:
        began = time.perf_counter()
        data = self._client.get().get(key)
        if self._first is not None:
            self._learn(self._first, time.perf_counter() - began)
        return data

    def _learn(self, first: deque[float], took: float) -> None:
        """From one more of the first answers: a store that is far is asked for more at once from then on."""
        first.append(took)
        if len(first) >= _TOLD_BY:
            self._first = None
            if sorted(first)[len(first) // 4] >= _NEAR_S:
                self._at_once = self.in_flight
                self._threads[NEAR_IN_FLIGHT].drop()  # what is queued there is still done

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """The bytes from each start to before each stop; near ones by one request."""
        for start, stop in ranges:
            if not 0 <= start <= stop:
                raise UsageError(f"range {start} to {stop} of {key!r}: take 0 <= start <= stop")
        some = [(start, stop) for start, stop in ranges if start < stop]
        answers = iter(self._client.get().get_ranges(key, some) if some else ())
        found = [next(answers) if start < stop else b"" for start, stop in ranges]
        for (start, stop), data in zip(ranges, found, strict=True):
            if len(data) != stop - start:
                raise StoreError(
                    f"bytes {start} to {stop} of {key!r} in {self.url}: only {len(data)} came; "
                    "the object is shorter than that: list it again"
                )
        return found

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whole or not at all, in place of one that has this key."""
        self._client.get().put(key, data)


def local_folder(given: str | os.PathLike[str], name: str = "the folder") -> Path:
    """A folder to write into, which is on this machine; UsageError for an address."""
    text = checked_path(name, given, "a folder to write into, such as /scratch/set")
    if re.match(r"[A-Za-z][\w+.-]+:/", text):  # not C:/; of two slashes a Path keeps one
        raise UsageError(f"{shown_url(text)} is no folder of this machine: give a path, such as /scratch/set")
    return expanded(text).absolute()


def folder_of(url: str | Path) -> Path | None:
    """The folder that an address names; None for one that is remote."""
    text = checked_path("url", url, "an address or a folder, such as s3://bucket/train or /data/train")
    if not isinstance(url, str):
        return expanded(text).absolute()
    scheme, marked, _ = url.partition("://")
    if not marked:
        return expanded(url).absolute()
    if scheme.lower() == "file":
        named = urlsplit(url)
        if named.netloc not in ("", "localhost") or not named.path:
            raise UsageError(
                f"{shown_url(url)} names no folder of this machine: a path comes behind three slashes, "
                "file:///data/train"
            )
        return Path(unquote(named.path))
    if scheme.lower() not in REMOTE:
        raise UsageError(
            f"{shown_url(url)}: no store is called {scheme}://; there are {'://, '.join(REMOTE)}://, "
            "file:// and plain paths"
        )
    if not urlsplit(url).netloc.rpartition("@")[2]:
        raise UsageError(
            f"{shown_url(url)} names no bucket; give {scheme}://bucket or {scheme}://bucket/prefix"
        )
    return None
