"""The loader's side of a batch: measured where it is fetched, told to the process that trains.

Nothing wraps the dataset. The fetcher (torch's own, private to a worker) is timed, and what it cost
travels behind the pickled batch, in the same message: pickle stops reading at its own end, so a
reader that knows nothing of it sees the batch and no more. No queue, no file and no lock is added,
and a batch that never arrived was never told of.
"""

import io
import json
import multiprocessing.queues
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from time import perf_counter, perf_counter_ns
from typing import Any

from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils import worker as torch_worker

from stoker.watch.meter import Cost, meter_here, watch_libraries
from stoker.watch.tracebacks import without_stoker

_MAGIC = b"\x00stoker1"
_HEAD = len(_MAGIC) + 4
_TORCH_LOOP = torch_worker._worker_loop


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What a worker is told at its start; pickled with it."""

    iterator: int
    stateful: bool = False


@dataclass(slots=True)
class Fetched:
    """What a worker told of one batch, and what happened to it on the way."""

    worker: int | None
    seq: int
    started: float
    cost: dict[str, Any]
    handoff: float | None = None
    pin: float | None = None


# --- in the worker -------------------------------------------------------------------------------


class WorkerLoop:
    """Stands where torch's worker loop stood. Which iterator starts workers is its thread's to say.

    A forked worker calls it; for spawn it is pickled as the observed loop with what it was told.
    """

    def __init__(self) -> None:
        self._starting = threading.local()

    def start_for(self, spec: WorkerSpec) -> None:
        """This thread is about to start workers for that iterator."""
        self._starting.spec = spec

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run as a forked worker."""
        _observed_loop(self._starting.spec, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_observed_loop, self._starting.spec)


def _observed_loop(spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
    """Torch's worker loop, with the fetcher timed and the pickler telling."""
    watch_libraries()
    _patch_fetchers()
    _this_worker.iterator = spec.iterator
    multiprocessing.queues._ForkingPickler = _TellingPickler  # type: ignore[attr-defined]
    vars(torch_worker)["ExceptionWrapper"] = _wrap_plainly
    loop = _TORCH_LOOP
    if spec.stateful:
        stateful = import_module("torchdata.stateful_dataloader.worker")
        vars(stateful)["ExceptionWrapper"] = _wrap_plainly
        loop = _stateful_loop()
    loop(*args, **kwargs)


class _ThisWorker:
    """What one worker process knows of itself."""

    def __init__(self) -> None:
        self.iterator: int | None = None
        self.waiting: list[dict[str, Any] | None] = []


_this_worker = _ThisWorker()


class _TellingPickler(ForkingPickler):
    """Writes what the batch cost behind the batch. Runs on the queue's feeder thread."""

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> memoryview:
        """Pickle; then, where it is a batch, the telling."""
        buffer = io.BytesIO()
        started = perf_counter_ns()
        ForkingPickler(buffer, protocol).dump(obj)
        if isinstance(obj, tuple) and obj and isinstance(obj[0], int) and _this_worker.waiting:
            # Batches leave in the order in which they were fetched.
            told = _this_worker.waiting.pop(0)
            if told is not None:
                info = torch_worker.get_worker_info()
                told["pickle"] = perf_counter_ns() - started
                told["iterator"] = _this_worker.iterator
                told["worker"] = None if info is None else info.id
                text = json.dumps(told).encode()
                buffer.write(text + len(text).to_bytes(4, "little") + _MAGIC)
        return buffer.getbuffer()


def _wrap_plainly(*args: Any, **kwargs: Any) -> Any:
    """An ExceptionWrapper whose text has the user's frames and torch's, not ours."""
    import sys

    from torch._utils import ExceptionWrapper

    kind, error, trace = sys.exc_info()
    if not args and "exc_info" not in kwargs and error is not None:
        kwargs["exc_info"] = (kind, error, without_stoker(trace))
    return ExceptionWrapper(*args, **kwargs)


def _stateful_loop() -> Callable[..., None]:
    module = import_module("torchdata.stateful_dataloader.worker")
    return module._worker_loop  # type: ignore[no-any-return]


# --- the fetcher, in workers and in a process that loads for itself ---------------------------------

_fetched_here = threading.local()
_patched: list[tuple[type, Any]] = []


def _patch_fetchers() -> None:
    if _patched:
        return
    for kind in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
        _patched.append((kind, kind.fetch))
        kind.fetch = _timed_fetch(kind.fetch)  # type: ignore[method-assign]


def unpatch_fetchers() -> None:
    """Put torch's own fetchers back."""
    while _patched:
        kind, original = _patched.pop()
        kind.fetch = original  # type: ignore[attr-defined]


def patch_fetchers() -> None:
    """Time fetches in this process, for loaders without workers."""
    watch_libraries()
    _patch_fetchers()


def fetched_here() -> dict[str, Any] | None:
    """What the last fetch on this thread cost; told once."""
    told: dict[str, Any] | None = getattr(_fetched_here, "told", None)
    _fetched_here.told = None
    return told


def _timed_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(self: Any, index: Any) -> Any:
        if not isinstance(self.collate_fn, _TimedCollate):
            self.collate_fn = _TimedCollate(self.collate_fn, self.auto_collation)
            watch_libraries()
        started = perf_counter()
        meter = meter_here()
        meter.begin()
        try:
            data = original(self, index)
        except BaseException:
            meter.end()
            # One message leaves a worker for every fetch, whatever came of it.
            _tell(None)
            raise
        cost = meter.end()
        by_batch = not self.auto_collation or bool(getattr(self.dataset, "__getitems__", None))
        cost.count("item", 1 if by_batch else len(index))
        _tell(_told(cost, started))
        return data

    return fetch


def _tell(told: dict[str, Any] | None) -> None:
    if _this_worker.iterator is None:
        _fetched_here.told = told
    else:
        _this_worker.waiting.append(told)


class _TimedCollate:
    """A fetcher's collate function, timed."""

    def __init__(self, collate: Callable[[Any], Any], auto: bool) -> None:
        self._collate = collate
        self._auto = auto

    def __call__(self, data: Any) -> Any:
        meter = meter_here()
        cost = meter.cost
        if self._auto:
            cost.samples = len(data)
        before = cost.read_wall, cost.read_cpu  # a read inside collate is collate's
        meter.begin_collate()
        try:
            return self._collate(data)
        finally:
            meter.end_collate()
            cost.read_wall, cost.read_cpu = before


def _told(cost: Cost, started: float) -> dict[str, Any]:
    read, transform = cost.split()
    return {
        "t": started,
        "samples": cost.samples,
        "read": read,
        "transform": transform,
        "collate": cost.collate,
        "cpu": cost.cpu,
        "queued": cost.queued,
        "bytes": cost.bytes,
        "disk": cost.disk,
        "faults": cost.faults,
        "calls": cost.calls,
    }


# --- in the process that trains ----------------------------------------------------------------------


class Mailbox:
    """Where tellings wait between their arrival and the `next()` that hands the batch out."""

    def __init__(self) -> None:
        self._by_iterator: dict[int, OrderedDict[int, Fetched]] = {}
        self._last = threading.local()

    def receive(self, seq: int, telling: bytes, unpickle_ns: int) -> None:
        """A batch arrived with its telling."""
        cost = json.loads(telling)
        fetched = Fetched(
            worker=cost.pop("worker"),
            seq=seq,
            started=cost.pop("t"),
            cost=cost,
            handoff=(cost.pop("pickle") + unpickle_ns) / 1e9,
        )
        waiting = self._by_iterator.setdefault(cost.pop("iterator"), OrderedDict())
        waiting[seq] = fetched
        self._last.fetched = fetched

    def pinned(self, seconds: float) -> None:
        """The batch that arrived last on this thread was pinned."""
        fetched: Fetched | None = getattr(self._last, "fetched", None)
        if fetched is not None:
            fetched.pin = seconds

    def take(self, iterator: int, seq: int | None) -> Fetched | None:
        """The telling of the batch that was just handed out."""
        waiting = self._by_iterator.get(iterator)
        if not waiting:
            return None
        if seq is not None and seq in waiting:
            return waiting.pop(seq)
        return waiting.popitem(last=False)[1]  # out of order, as in_order=False asks

    def forget(self, iterator: int) -> None:
        """An epoch begins: what was prefetched and never handed out is nobody's."""
        self._by_iterator.pop(iterator, None)


class ReadingPickler(ForkingPickler):
    """Takes the telling off the message's end. `mailbox` is the run's; None leaves it unread."""

    mailbox: Mailbox | None = None

    @staticmethod
    def loads(buffer: Any, /, **kwargs: Any) -> Any:  # type: ignore[override]
        """Unpickle; keep what stands behind."""
        started = perf_counter_ns()
        obj = ForkingPickler.loads(buffer, **kwargs)
        mailbox = ReadingPickler.mailbox
        view = memoryview(buffer)
        if mailbox is not None and view[-len(_MAGIC) :] == _MAGIC:
            unpickle = perf_counter_ns() - started
            size = int.from_bytes(view[-_HEAD : -len(_MAGIC)], "little")
            mailbox.receive(obj[0], bytes(view[-_HEAD - size : -_HEAD]), unpickle)
        return obj
