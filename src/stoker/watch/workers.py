"""The loader's side of a batch: measured where it is fetched, told to the process that trains.

Nothing wraps the dataset. The fetcher (torch's own, private to a worker) is timed, and what it cost
travels behind the pickled batch, in the same message: pickle stops reading at its own end, so a
reader that knows nothing of it sees the batch and no more. No queue, no file and no lock is added,
and a batch that never arrived was never told of.
"""

import io
import multiprocessing.queues
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import count
from multiprocessing.reduction import ForkingPickler
from time import perf_counter_ns, thread_time_ns, time
from typing import Any, TypeAlias

from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils import worker as torch_worker

from stoker.watch.meter import Cost, meter_here, watch_libraries
from stoker.watch.tracebacks import without_stoker

_MAGIC = b"\x00stoker2"
# iterator, samples (-1: not known), nanoseconds of pickling, those on a core, length of the text before this
_HEAD = struct.Struct(f"<iiqqi{len(_MAGIC)}s")
_MAGIC_SIZE = len(_MAGIC)
_TORCH_LOOP = torch_worker._worker_loop
_loads = ForkingPickler.loads


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What a worker is told at its start; pickled with it. Without an iterator nobody asks for costs."""

    iterator: int | None
    stateful: bool = False


# What was told of one batch: [samples, text, nanoseconds of hand-off, nanoseconds of pinning, nanoseconds of
# hand-off on a core]. A list, since it is made on the training thread for every batch.
Told: TypeAlias = list[Any]


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
    """Torch's worker loop, with the fetcher timed and the pickler telling; plain where nobody asks."""
    module = import_module("torchdata.stateful_dataloader.worker") if spec.stateful else torch_worker
    if spec.iterator is None:
        unpatch_fetchers()  # which a forked worker has from a process that was observed
    else:
        watch_libraries()
        _patch_fetchers()
        _this_worker.iterator = spec.iterator
        multiprocessing.queues._ForkingPickler = _TellingPickler  # type: ignore[attr-defined]
        for one in {torch_worker, module}:
            vars(one)["ExceptionWrapper"] = _wrap_plainly
    loop = module._worker_loop if spec.stateful else _TORCH_LOOP
    loop(*args, **kwargs)


class _ThisWorker:
    """What one worker process knows of itself."""

    def __init__(self) -> None:
        self.iterator: int | None = None
        self.waiting: list[Told | None] = []


_this_worker = _ThisWorker()


class _TellingPickler(ForkingPickler):
    """Writes what the batch cost behind the batch. Runs on the queue's feeder thread."""

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> memoryview:
        """Pickle; then, where it is a batch, the telling."""
        buffer = io.BytesIO()
        started, on_core = perf_counter_ns(), thread_time_ns()
        ForkingPickler(buffer, protocol).dump(obj)
        if isinstance(obj, tuple) and obj and isinstance(obj[0], int) and _this_worker.waiting:
            # Batches leave in the order in which they were fetched.
            told = _this_worker.waiting.pop(0)
            if told is not None:
                info = torch_worker.get_worker_info()
                text = f'"worker":{"null" if info is None else info.id},"seq":{obj[0]},'.encode() + told[1]
                samples = -1 if told[0] is None else told[0]
                spent = perf_counter_ns() - started, thread_time_ns() - on_core
                buffer.write(text)
                buffer.write(_HEAD.pack(_this_worker.iterator, samples, *spent, len(text), _MAGIC))
        return buffer.getbuffer()


def _wrap_plainly(*args: Any, **kwargs: Any) -> Any:
    """An ExceptionWrapper whose text has the user's frames and torch's, not ours."""
    import sys

    from torch._utils import ExceptionWrapper

    kind, error, trace = sys.exc_info()
    if not args and "exc_info" not in kwargs and error is not None:
        kwargs["exc_info"] = (kind, error, without_stoker(trace))
    return ExceptionWrapper(*args, **kwargs)


# --- the fetcher, in workers and in a process that loads for itself ---------------------------------

_fetched_here = threading.local()
_fetches = count()
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


def fetched_here() -> Told | None:
    """What the last fetch on this thread cost; told once."""
    told: Told | None = getattr(_fetched_here, "told", None)
    _fetched_here.told = None
    return told


def _timed_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(self: Any, index: Any) -> Any:
        if not isinstance(self.collate_fn, _TimedCollate):
            self.collate_fn = _TimedCollate(self.collate_fn, self.auto_collation)
            watch_libraries()
        started = time()
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


def _tell(told: Told | None) -> None:
    if _this_worker.iterator is not None:
        _this_worker.waiting.append(told)
    elif told is not None:
        told[1] = b'"worker":null,"seq":%d,' % next(_fetches) + told[1]
        _fetched_here.told = told


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


def _told(cost: Cost, started: float) -> Told:
    """The cost as the middle of a JSON line: made once, where the batch was made, and never parsed."""
    read, transform = cost.split()
    calls = ",".join(f'"{call}":{times}' for call, times in cost.calls.items())
    text = (
        f'"t":{started:.6f},"samples":{_or_null(cost.samples)},"read":{read / 1e9:.7f},'
        f'"transform":{transform / 1e9:.7f},"collate":{cost.collate / 1e9:.7f},"cpu":{cost.cpu / 1e9:.7f},'
        f'"queued":{"null" if cost.queued is None else f"{cost.queued / 1e9:.7f}"},'
        f'"bytes":{_or_null(cost.bytes)},"disk":{_or_null(cost.disk)},"faults":{_or_null(cost.faults)},'
        f'"calls":{{{calls}}}'
    )
    return [cost.samples, text.encode(), None, None, None]


def _or_null(value: int | None) -> str:
    return "null" if value is None else str(value)


# --- in the process that trains ----------------------------------------------------------------------


class Mailbox:
    """Where tellings wait, by iterator, between their arrival and the `next()` that hands the batch out."""

    def __init__(self) -> None:
        self.boxes: weakref.WeakValueDictionary[int, Box] = weakref.WeakValueDictionary()
        self.last = threading.local()

    def open(self, iterator: int) -> "Box":
        """A box for an iterator; it is gone when the iterator is."""
        box = self.boxes[iterator] = Box()
        return box

    def pinned(self, nanoseconds: int) -> None:
        """The batch that arrived last on this thread was pinned."""
        told: Told | None = getattr(self.last, "told", None)
        if told is not None:
            told[3] = nanoseconds


class Box(dict[int, Told]):
    """One iterator's tellings, by the number of the batch."""

    __slots__ = ("__weakref__",)


def take_oldest(box: Box) -> Told | None:
    """The telling of a batch that came out of order, as in_order=False asks; None where there is none."""
    return box.pop(next(iter(box))) if box else None


class ReadingPickler(ForkingPickler):
    """Takes the telling off the message's end. `mailbox` is the run's; None leaves it unread."""

    mailbox: Mailbox | None = None

    @staticmethod
    def loads(buffer: Any, /, **kwargs: Any) -> Any:  # type: ignore[override]
        """Unpickle; keep what stands behind."""
        started, on_core = perf_counter_ns(), thread_time_ns()
        obj = _loads(buffer, **kwargs)
        mailbox = ReadingPickler.mailbox
        if mailbox is not None and buffer[-_MAGIC_SIZE:] == _MAGIC:
            unpickled, cpu = perf_counter_ns() - started, thread_time_ns() - on_core
            end = len(buffer) - _HEAD.size
            iterator, samples, pickled, pickled_cpu, size, _ = _HEAD.unpack_from(buffer, end)
            box = mailbox.boxes.get(iterator)
            if box is not None:
                known = None if samples < 0 else samples
                text = bytes(buffer[end - size : end])
                box[obj[0]] = told = [known, text, pickled + unpickled, None, pickled_cpu + cpu]
                mailbox.last.told = told
        return obj
