"""What a fetch cost the thread that made it: reads, CPU, bytes, calls.

Reads are seen in two ways. Calls that pass through Python (`open` and the file it gives, `recv`,
`np.fromfile`, SQL) are timed. What does not (a memory map's page fault, a C library's own I/O) shows
as time off the CPU: wall time less CPU time less the run queue's. Both are `read`; the rest of the
time spent in the dataset is `transform`. The calls are watched only while a fetch is under way and
only on its thread; afterwards `open` is the interpreter's own again.
"""

import builtins
import io
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any

_LINUX = sys.platform.startswith("linux")
_open = io.open
_metering = threading.local()
# The kernel's counters cost about 25 us a fetch to read: every fetch of 3 ms or more pays that, of
# shorter ones every sixteenth.
_WORTH_COUNTING_NS = 3_000_000
_COUNT_EVERY = 16
# A file that was among the last so many that this process opened is opened again: shards opened for every
# sample are, a folder of images read once an epoch is not.
_OPENED_LATELY = 128
_opened: dict[int, None] = {}


@dataclass(slots=True)
class Cost:
    """A fetch's cost so far; times in nanoseconds."""

    wall: int = 0
    cpu: int = 0
    queued: int | None = None
    read_wall: int = 0
    read_cpu: int = 0
    collate: int = 0
    collate_cpu: int = 0
    samples: int | None = None
    bytes: int | None = None
    disk: int | None = None
    faults: int | None = None
    received: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def count(self, call: str, times: int = 1) -> None:
        """A call was made."""
        self.calls[call] = self.calls.get(call, 0) + times

    def split(self) -> tuple[int, int]:
        """Nanoseconds in (reads, transforms); collate and standing in the run queue apart."""
        wall = self.wall - self.collate
        cpu = self.cpu - self.collate_cpu
        queued = self.queued or 0
        # Off the CPU outside any read that was seen, and not for want of a core.
        off_cpu = (wall - self.read_wall) - (cpu - self.read_cpu) - queued
        read = min(self.read_wall + max(0, off_cpu), wall)
        return read, max(0, wall - read - queued)


class _ThreadCounters:
    """Kernel counters of one thread, its files kept open; None where the platform has none."""

    def __init__(self) -> None:
        self._sched = self._io = -1
        if _LINUX:
            self._sched = _try_open("/proc/thread-self/schedstat")
            self._io = _try_open("/proc/thread-self/io")

    def queued(self) -> int | None:
        """Nanoseconds this thread has stood in the run queue."""
        if self._sched < 0:
            return None
        try:
            return int(os.pread(self._sched, 96, 0).split()[1])
        except OSError:
            return None

    def io(self) -> tuple[int | None, int | None]:
        """(bytes asked of the kernel, bytes that came from a disk) by this thread."""
        if self._io < 0:
            return None, None
        try:
            lines = os.pread(self._io, 512, 0).split()
        except OSError:
            return None, None
        # rchar: N wchar: N syscr: N syscw: N read_bytes: N …
        return int(lines[1]), int(lines[9])

    def faults(self) -> int | None:
        """Major page faults of this thread."""
        if not _LINUX:
            return None
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _try_open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class Meter:
    """Measures fetches on the thread that calls it: `with`-less for speed, `begin` then `end`."""

    def __init__(self) -> None:
        self.cost = Cost()
        self._counters = _ThreadCounters()
        self._wall = self._cpu = 0
        self._queued: int | None = None
        self._io: tuple[int | None, int | None] = (None, None)
        self._faults: int | None = None
        self._collate = self._collate_cpu = 0
        self._turn = 0
        self._counting = True

    def begin(self) -> None:
        """A fetch begins."""
        self.cost = _metering.cost = Cost()
        _watch_calls()
        if self._counting:
            self._queued = self._counters.queued()
            self._io = self._counters.io()
            self._faults = self._counters.faults()
        self._cpu = thread_time_ns()
        self._wall = perf_counter_ns()

    def begin_collate(self) -> None:
        """The samples are there; collating them begins."""
        self._collate, self._collate_cpu = perf_counter_ns(), thread_time_ns()

    def end_collate(self) -> None:
        """The batch is collated."""
        self.cost.collate += perf_counter_ns() - self._collate
        self.cost.collate_cpu += thread_time_ns() - self._collate_cpu

    def end(self) -> Cost:
        """The fetch is over (or has raised)."""
        cost = self.cost
        cost.wall = perf_counter_ns() - self._wall
        cost.cpu = thread_time_ns() - self._cpu
        _metering.cost = None
        _unwatch_calls()
        if self._counting:
            cost.queued = _less(self._counters.queued(), self._queued)
            asked, disk = self._counters.io()
            cost.bytes = _less(asked, self._io[0])
            if cost.bytes is not None:
                cost.bytes += cost.received  # recv is not in rchar
            cost.disk = _less(disk, self._io[1])
            cost.faults = _less(self._counters.faults(), self._faults)
        self._turn += 1
        self._counting = cost.wall >= _WORTH_COUNTING_NS or self._turn % _COUNT_EVERY == 0
        return cost


_meters = threading.local()


def meter_here() -> Meter:
    """This thread's meter. The counters' files are a thread's own, so a forked child makes another."""
    known: tuple[int, Meter] | None = getattr(_meters, "pid_and_meter", None)
    if known is None or known[0] != os.getpid():
        known = _meters.pid_and_meter = (os.getpid(), Meter())
    return known[1]


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _current() -> Cost | None:
    return getattr(_metering, "cost", None)


class _TimedFileIO(io.FileIO):
    """A raw file whose reads are timed; buffers stand on it as on any other."""

    def readinto(self, buffer: Any, /) -> int:
        cost = _current()
        if cost is None:
            return super().readinto(buffer)
        wall, cpu = perf_counter_ns(), thread_time_ns()
        try:
            return super().readinto(buffer)
        finally:
            _add_read(cost, "read", wall, cpu)

    def readall(self) -> bytes:
        cost = _current()
        if cost is None:
            return super().readall()
        wall, cpu = perf_counter_ns(), thread_time_ns()
        try:
            return super().readall()
        finally:
            _add_read(cost, "read", wall, cpu)


def _add_read(cost: Cost, call: str, wall: int, cpu: int) -> None:
    cost.read_wall += perf_counter_ns() - wall
    cost.read_cpu += thread_time_ns() - cpu
    cost.count(call)


def _timed_open(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """`open`, on a timed raw file where it is opened for reading with a buffer; else as ever."""
    cost = _current()
    if cost is None:
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    wall, cpu = perf_counter_ns(), thread_time_ns()
    try:
        plain = not set(mode) - set("rbt") and buffering in (-1,) and mode.count("r") == 1
        text = "b" not in mode
        wrong = not text and (
            encoding is not None or errors is not None or newline is not None or "t" in mode
        )
        if not plain or wrong:
            return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _TimedFileIO(file, "r", closefd, opener)
        try:
            size = max(getattr(raw, "_blksize", io.DEFAULT_BUFFER_SIZE), io.DEFAULT_BUFFER_SIZE)
            buffered = io.BufferedReader(raw, size)
            if not text:
                return buffered
            wrapped = io.TextIOWrapper(buffered, io.text_encoding(encoding), errors, newline)
            wrapped.mode = mode  # type: ignore[misc]  # as `open` itself does
            return wrapped
        except BaseException:
            raw.close()
            raise
    finally:
        _add_read(cost, "open", wall, cpu)
        _count_reopened(cost, file)


def _count_reopened(cost: Cost, file: Any) -> None:
    """Note a file that was opened a moment ago already."""
    if isinstance(file, int):
        return
    key = hash(os.fspath(file))
    if key in _opened:
        cost.count("reopen")
        del _opened[key]
    elif len(_opened) >= _OPENED_LATELY:
        del _opened[next(iter(_opened))]
    _opened[key] = None


def _timed_recv(original: Callable[..., Any], call: str) -> Callable[..., Any]:
    def recv(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
        cost = _current()
        if cost is None:
            return original(self, *args, **kwargs)
        wall, cpu = perf_counter_ns(), thread_time_ns()
        got: Any = 0
        try:
            got = original(self, *args, **kwargs)
            if _begins_with_http(got, args):
                cost.count("http")
            return got
        finally:
            _add_read(cost, call, wall, cpu)
            cost.received += got if isinstance(got, int) else len(got)

    return recv


def _begins_with_http(got: Any, args: tuple[Any, ...]) -> bool:
    """Whether what came is the beginning of an HTTP answer, whichever library asked."""
    if isinstance(got, int):  # received into the buffer that was given
        return got > len(_HTTP) and bytes(memoryview(args[0]).cast("B")[: len(_HTTP)]) == _HTTP
    return bool(got.startswith(_HTTP))


def _timed_fromfile(original: Callable[..., Any]) -> Callable[..., Any]:
    def fromfile(*args: Any, **kwargs: Any) -> Any:
        cost = _current()
        if cost is None:
            return original(*args, **kwargs)
        wall, cpu = perf_counter_ns(), thread_time_ns()
        try:
            return original(*args, **kwargs)
        finally:
            _add_read(cost, "read", wall, cpu)

    return fromfile


_HTTP = b"HTTP/1."
_watchers = 0
_watchers_lock = threading.Lock()


def _watch_calls() -> None:
    global _watchers
    with _watchers_lock:
        _watchers += 1
        if _watchers == 1:
            builtins.open = _timed_open
            io.open = _timed_open


def _unwatch_calls() -> None:
    global _watchers
    with _watchers_lock:
        _watchers -= 1
        if _watchers == 0:
            builtins.open = _open
            io.open = _open


_once_done: set[str] = set()


def watch_libraries() -> None:
    """Put timers under the libraries that have been imported by now; each once, for good.

    They cost a thread-local look-up where no fetch is under way.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" not in _once_done:
        _once_done.add("numpy")
        numpy.fromfile = _timed_fromfile(numpy.fromfile)
    if "socket" not in _once_done:
        _once_done.add("socket")
        socket.socket.recv = _timed_recv(socket.socket.recv, "recv")  # type: ignore[method-assign]
        socket.socket.recv_into = _timed_recv(socket.socket.recv_into, "recv")  # type: ignore[method-assign]
    ssl = sys.modules.get("ssl")
    if ssl is not None and "ssl" not in _once_done:
        _once_done.add("ssl")
        ssl.SSLSocket.recv = _timed_recv(ssl.SSLSocket.recv, "recv")
        ssl.SSLSocket.recv_into = _timed_recv(ssl.SSLSocket.recv_into, "recv")
    if "sqlite3" not in _once_done:
        _once_done.add("sqlite3")
        _watch_sqlite()
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and "psycopg" not in _once_done:
        _once_done.add("psycopg")
        psycopg.Cursor.execute = _counted_query(psycopg.Cursor.execute)
        psycopg.Cursor.executemany = _counted_query(psycopg.Cursor.executemany)
    sqlalchemy = sys.modules.get("sqlalchemy")
    if sqlalchemy is not None and "sqlalchemy" not in _once_done and "psycopg" not in _once_done:
        _once_done.add("sqlalchemy")
        sqlalchemy.event.listen(sqlalchemy.engine.Engine, "before_cursor_execute", _count_query)


def _watch_sqlite() -> None:
    try:
        import sqlite3
    except ImportError:  # a Python built without it has no queries to count
        return
    sqlite3.connect = sqlite3.dbapi2.connect = _counting_connect(sqlite3.connect)


def _count_query(*_: Any) -> None:
    cost = _current()
    if cost is not None:
        cost.count("query")


def _counted_query(original: Callable[..., Any]) -> Callable[..., Any]:
    def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        _count_query()
        return original(self, *args, **kwargs)

    return execute


def _counting_connect(original: Callable[..., Any]) -> Callable[..., Any]:
    def connect(*args: Any, **kwargs: Any) -> Any:
        connection = original(*args, **kwargs)
        connection.set_trace_callback(_count_query)
        return connection

    return connect
