"""Batches read ahead, in order: by threads of this process, or by worker processes.

What is asked for is a row of index arrays; what comes is a batch for each, in that order, with a bounded
number under way. An error comes where its batch would have come.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from stoker.feed.order import Shard
from stoker.feed.sources.base import Indices, Source


class Prefetch(Protocol):
    """Reads ahead."""

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""

    def close(self) -> None:
        """No more will be read."""


class Inline:
    """Reads where it is asked, one batch at a time: for datasets that belong to one thread."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""
        for indices in wanted:
            yield _read(self._source, indices)

    def close(self) -> None:
        """Nothing is kept."""


class Threads:
    """Reads with threads: for sources that leave the interpreter alone while they read and decode."""

    def __init__(self, source: Source, *, threads: int, ahead: int) -> None:
        self._source = source
        self._threads = threads
        self._ahead = ahead

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="stoker-feed")
        waiting: deque[Future[Any]] = deque()
        try:
            for indices in wanted:
                waiting.append(pool.submit(_read, self._source, indices))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # Also when the loop has gone away: what is being read is waited for, so that nobody reads from a
            # source that is being taken down.
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Nothing is kept between epochs."""


class Workers:
    """Reads with worker processes of torch's DataLoader, which live on from epoch to epoch.

    A loader has only one epoch at a time: one that begins amid another gets workers of its own. `options` are
    a DataLoader's: how workers are started, and what they begin with.
    """

    def __init__(
        self, source: Source, *, workers: int, ahead: int, pin: bool, seed: int, **options: Any
    ) -> None:
        # The loader that waits for the next epoch, if there is one.
        self._waiting: list[DataLoader[Any]] = []
        self._make = partial(
            DataLoader,
            Batches(source),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=max(1, ahead // workers),
            pin_memory=pin,
            persistent_workers=True,
            # Its own, so that the user's random numbers are not drawn from.
            generator=torch.Generator().manual_seed(seed),
            **options,
        )

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""
        waiting = self._waiting
        try:
            loader = waiting.pop()
        except IndexError:
            loader = self._make(sampler=_Wanted())
        assert isinstance(loader.sampler, _Wanted)
        asked: deque[bytes] = deque()
        loader.sampler.arrays = _noted(wanted, asked)
        try:
            for read_for, batch in loader:
                if read_for != asked.popleft():
                    raise AssertionError(
                        "worker processes gave a batch of other samples than were asked for next: "
                        "a fault in Stoker, please report it"
                    )
                yield batch
        except Exception:
            # The next epoch gets new workers. These end now: the exception holds the loader, and a worker
            # that is forked meanwhile would take it for its own.
            waiting = []
            _end_workers(loader)
            raise
        finally:
            # Also when the loop has gone away, then perhaps because a worker died: torch tells of that by an
            # exception wherever the main thread is. Not after `close`, nor a second one.
            if not waiting and waiting is self._waiting and _all_live(loader):
                waiting.append(loader)

    def close(self) -> None:
        """End the workers that wait, others after their epoch; they are started again if there is more."""
        self._waiting = []


def wanted_of(
    missing: "weakref.WeakMethod[Callable[[Indices], Indices]]",
    shards: Iterable[Shard],
    asked: deque[tuple[Shard, Indices]],
) -> Iterator[Indices]:
    """What is to be read for each shard. The reader keeps this, so it must not keep the reader's owner."""
    for shard in shards:
        find = missing()
        if find is None:
            return
        asked.append((shard, find(shard.samples)))
        del find
        yield asked[-1][1]


def _all_live(loader: DataLoader[Any]) -> bool:
    """Whether none of its workers has died; they are there from its first epoch on."""
    iterator: Any = loader._iterator
    return iterator is None or all(worker.is_alive() for worker in iterator._workers)


def _end_workers(loader: DataLoader[Any]) -> None:
    """As torch does when nobody holds the loader any more."""
    iterator: Any = loader._iterator
    if iterator is not None:
        iterator._shutdown_workers()


def _read(source: Source, indices: Indices) -> Any:
    """A batch; nothing for nothing."""
    return source.read(indices) if len(indices) else None


def _noted(wanted: Iterable[Indices], asked: deque[bytes]) -> Iterator[Indices]:
    """The same, and noted."""
    for indices in wanted:
        asked.append(indices.tobytes())
        yield indices


class _Wanted(Sampler[Any]):
    """What the loader is to read in its next epoch."""

    def __init__(self) -> None:
        self.arrays: Iterable[Indices] = ()

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.arrays)


class Batches(Dataset[Any]):
    """A source whose items are whole batches, each with the indices it was read for.

    These as bytes, which torch leaves as they are; an array it would make a tensor in shared memory.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, indices: Indices) -> tuple[bytes, Any]:
        return indices.tobytes(), _read(self.source, indices)
