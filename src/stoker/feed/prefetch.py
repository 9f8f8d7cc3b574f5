"""Batches read ahead, in order: by threads of this process, or by worker processes.

What is asked for is a row of index arrays; what comes is a batch for each, in that order, with a bounded
number under way. An error comes where its batch would have come.
"""

import multiprocessing
import pickle
import signal
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data._utils.pin_memory import pin_memory

from stoker.errors import ReaderDied, SourceBroken
from stoker.feed.order import Shard
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices

# Without a batch between them, deaths of workers are no accident.
_MOST_DEATHS = 3
# Seconds that a process may take to end, from the end of its connections on.
_DYING_S = 2.0
# Of the samples of a batch that kills workers, so many are named.
_TOLD = 8


class Readable(Protocol):
    """What is read: a source."""

    def read(self, indices: Indices, /) -> Any:
        """The batch of these samples."""


class Prefetch(Protocol):
    """Reads ahead."""

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""

    def close(self) -> None:
        """No more will be read."""


class Inline:
    """Reads where it is asked, one batch at a time: for datasets that belong to one thread."""

    def __init__(self, source: Readable) -> None:
        self._source = source

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""
        for indices in wanted:
            yield _read(self._source, indices)

    def close(self) -> None:
        """Nothing is kept."""


class Threads:
    """Reads with threads: for sources that leave the interpreter alone while they read and decode.

    They live on from epoch to epoch, until nobody refers to them any more: to start and end two of them took
    0.5 ms, of 20 for an epoch of 400 MB out of the page cache.
    """

    def __init__(self, source: Readable, *, threads: int, ahead: int) -> None:
        self._source = source
        self._ahead = ahead
        self._pool = PerProcess(partial(ThreadPoolExecutor, threads, thread_name_prefix="stoker-feed"))

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order."""
        pool = self._pool.get()
        waiting: deque[Future[Any]] = deque()
        try:
            for indices in wanted:
                waiting.append(pool.submit(_read, self._source, indices))
                if len(waiting) > self._ahead:
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        finally:
            # Also when the loop has gone away: what is being read is waited for, so that nobody reads from a
            # source that is being taken down.
            wait([one for one in waiting if not one.cancel()])

    def close(self) -> None:
        """No threads are kept; another epoch that is at work has its own until its end."""
        self._pool.drop()


class Workers:
    """Reads with worker processes of torch's DataLoader, which live on from epoch to epoch.

    A loader has only one epoch at a time: one that begins amid another gets workers of its own. `options` are
    a DataLoader's: how workers are started, and what they begin with. `doing` is what is told of them where
    they die; else at which samples.
    """

    def __init__(
        self,
        source: Readable,
        *,
        workers: int,
        ahead: int,
        pin: bool,
        seed: int,
        doing: str = "",
        **options: Any,
    ) -> None:
        self._doing = doing
        # The loader that waits for the next epoch, if there is one.
        self._waiting: list[DataLoader[Any]] = []
        each = max(1, ahead // workers)
        self._ahead = each * workers
        self._make = partial(
            DataLoader,
            Batches(source),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=each,
            pin_memory=pin,
            persistent_workers=True,
            # Its own, so that the user's random numbers are not drawn from.
            generator=torch.Generator().manual_seed(_fitting(seed)),
            **options,
        )

    def read(self, wanted: Iterable[Indices]) -> Iterator[Any]:
        """A batch for each of these, in order.

        What dead workers had under way is read again by new ones, one batch at a time: then the batch that
        kills them, if it is one, is known, and those before it have come.
        """
        asked: deque[Indices] = deque()
        left, deaths, singly = iter(wanted), 0, 0
        while True:
            try:
                for batch in self._read(asked, left, only=1 if singly else None):
                    deaths = 0
                    yield batch
                if not singly:
                    return
                singly -= 1
            except _Died as died:
                deaths, singly = deaths + 1, len(asked)
                if deaths >= _MOST_DEATHS:
                    where = self._doing or _told(asked[0])
                    raise ReaderDied(
                        f"{died}, {deaths} times over, {where}: {_advice(died.signals)}"
                    ) from died
                warnings.warn(f"{died}; what was under way is read again, by new ones", stacklevel=2)

    def _read(self, asked: deque[Indices], left: Iterator[Indices], only: int | None) -> Iterator[Any]:
        """What was asked for, then what is left; or `only` so many batches. _Died where a worker has.

        torch's handler of SIGCHLD raises for the workers that it watches, wherever the loop is then, and also
        where nobody can catch it: so they are not watched. One that died is found before a batch is waited
        for, and by torch within 5 s while it waits.
        """
        waiting = self._waiting
        try:
            loader = waiting.pop()
        except IndexError:
            loader = self._make(sampler=_Wanted())
        wanted = loader.sampler
        assert isinstance(wanted, _Wanted)
        wanted.begin(asked, only)
        try:
            _ask(asked, left, self._ahead if only is None else only)
            iterator = _started(loader)
            _unwatch(iterator)
            while True:
                if only is None:
                    _ask(asked, left, self._ahead + 1)
                if _dead(loader):
                    raise RuntimeError("a worker died while the loop was at work")
                came: _Batch | None = next(iterator, None)
                if came is None and wanted.is_over:
                    return
                if came is None or not asked or came.read_for != asked[0].tobytes():
                    raise AssertionError(
                        "worker processes gave a batch of other samples than were asked for next: "
                        "a fault in Stoker, please report it"
                    )
                wanted.pass_one()
                yield came.batch
                del came
        except Exception as error:
            # The next epoch gets new workers. These end now: the exception holds the loader, and a worker
            # that is forked meanwhile would take it for its own.
            waiting = []
            died = _death_of(loader, error)
            _end_workers(loader)
            if died is not None:
                raise died from error
            raise
        finally:
            # Also when the loop has gone away. Not after `close`, nor a second one, nor with a dead worker.
            if not waiting and waiting is self._waiting and not _dead(loader):
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


class _Died(Exception):
    """Workers died; `signals` are what they died of."""

    def __init__(self, told: str, signals: frozenset[int]) -> None:
        super().__init__(told)
        self.signals = signals


def _death_of(loader: DataLoader[Any], error: Exception) -> _Died | None:
    """The death behind an error; None where there is none. torch may tell of one before a loader can."""
    dead = _dead(loader)
    if isinstance(error, ConnectionError | EOFError):
        # As its batch is fetched from it. A kernel ends the connections of a process, then the process.
        give_up = time.monotonic() + _DYING_S
        while not dead and time.monotonic() < give_up:
            time.sleep(0.01)
            dead = _dead(loader)
    if dead:
        told = ", ".join(f"{worker.pid} ({_cause(worker.exitcode)})" for worker in dead)
        signals = frozenset(-(worker.exitcode or 0) for worker in dead)
        return _Died(f"worker process {told} of the feed died", signals)
    if str(error).startswith("DataLoader worker (pid"):
        return _Died(f"a worker process of the feed died ({str(error).strip()})", frozenset())
    return None


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


def _advice(signals: frozenset[int]) -> str:
    """What to do about workers that die again and again, by what they died of."""
    if getattr(signal, "SIGBUS", None) in signals:
        return (
            "a batch found no room in shared memory; make /dev/shm larger (docker: --shm-size), or read in "
            "this process with workers=0"
        )
    if getattr(signal, "SIGKILL", None) in signals:
        return (
            "the kernel does that when memory runs out; look into dmesg, and take fewer workers or smaller "
            "batches"
        )
    return "read in this process with workers=0 to see what the dataset does there"


def _told(samples: Indices) -> str:
    return f"at samples {', '.join(map(str, samples[:_TOLD].tolist()))}" + ", …" * (len(samples) > _TOLD)


def _started(loader: DataLoader[Any]) -> Any:
    """An iterator of the loader, with its workers; SourceBroken where they cannot be sent what they read."""
    try:
        return iter(loader)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        context: Any = loader.multiprocessing_context or multiprocessing
        how = context.get_start_method()
        if how == "fork":  # which sends nothing
            raise
        raise SourceBroken(
            f"the dataset cannot be sent to worker processes, which are started by {how}: {error}. Have it "
            "open files and connections at its first read, and define its functions at the top of a module; "
            "or read in this process with workers=0"
        ) from error


def _unwatch(iterator: Any) -> None:
    if iterator._worker_pids_set:
        iterator._worker_pids_set = False
        torch._C._remove_worker_pids(id(iterator))


def _dead(loader: DataLoader[Any]) -> list[Any]:
    """Those of its workers that have died; they are there from its first epoch on."""
    iterator: Any = loader._iterator
    return [] if iterator is None else [one for one in iterator._workers if not one.is_alive()]


def _end_workers(loader: DataLoader[Any]) -> None:
    """As torch does when nobody holds the loader any more."""
    iterator: Any = loader._iterator
    if iterator is not None:
        iterator._shutdown_workers()


def _first(waiting: deque[Future[Any]]) -> Any:
    """The batch that comes next: among those that wait until it has come."""
    batch = waiting[0].result()
    waiting.popleft()
    return batch


def _read(source: Readable, indices: Indices) -> Any:
    """A batch; nothing for nothing."""
    return source.read(indices) if len(indices) else None


def _ask(asked: deque[Indices], left: Iterator[Indices], most: int) -> None:
    """As many as are to be under way, as far as there are some left."""
    while len(asked) < most and (indices := next(left, None)) is not None:
        asked.append(indices)


class _Wanted(Sampler[Any]):
    """What the loader is to read next: of what is asked for, what it was not told yet.

    It ends where nothing is asked for, and goes on when something is: torch asks again after every batch.
    """

    def __init__(self) -> None:
        self.begin(deque(), None)

    def begin(self, asked: deque[Indices], only: int | None) -> None:
        """From the first of these on, or only so many; who adds to them goes on adding."""
        self._asked, self._only, self._told = asked, only, 0

    def pass_one(self) -> None:
        """The first of them is there."""
        self._asked.popleft()
        self._told -= 1
        if self._only is not None:
            self._only -= 1

    @property
    def is_over(self) -> bool:
        """Whether all of them are there."""
        return not self._asked or self._only == 0

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        if self._told >= len(self._asked) or (self._only is not None and self._told >= self._only):
            raise StopIteration
        self._told += 1
        return self._asked[self._told - 1]


class _Batch:
    """A batch on its way from a worker, with the indices it was read for.

    As an object of our own, which torch leaves as it is: of a tuple it would make a list, of arrays tensors.
    The indices are bytes: an array is sent through shared memory.
    """

    def __init__(self, read_for: bytes, batch: Any) -> None:
        self.read_for, self.batch = read_for, batch

    def pin_memory(self) -> "_Batch":
        """The same in pinned memory: torch's loader asks for it by this name."""
        return _Batch(self.read_for, tree_map(pin_memory, self.batch))


class Batches(Dataset[Any]):
    """A source whose items are whole batches."""

    def __init__(self, source: Readable) -> None:
        self.source = source

    def __getitem__(self, indices: Indices) -> _Batch:
        return _Batch(indices.tobytes(), _read(self.source, indices))


def _fitting(seed: int) -> int:
    """The seed as a generator of torch's takes it; those of an order may be larger, and numpy's."""
    seed = int(seed)
    return seed if -(2**63) <= seed < 2**64 else seed % 2**63
