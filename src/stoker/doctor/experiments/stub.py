"""Making a batch with its reads answered from memory, and with its samples so: which part costs what.

What cannot be answered from memory (maps, sockets, a C library's own reads, files that were open before)
shows as bytes that are still asked of the kernel; the experiment then tells nothing: not "no effect".
"""

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stoker.doctor.experiments.making import Maker, Telling, timed
from stoker.doctor.experiments.passes import Pass

# Bytes kept to answer from; more, and the experiment is not held.
_MOST_KEPT = 512 << 20
# Of what is asked without stubs: what may be left of it for reads to count as answered.
_LEFT = 0.1
# Bytes a batch: less is no reading of files to speak of.
_LEAST_ASKED = 4096


def stub(maker: Maker, seconds: float) -> Iterator[Telling]:
    """Seconds a batch with nothing, with reads and with samples answered; or why not."""
    nothing = maker.over(maker.indices, seconds)
    indices = maker.indices[: nothing.batches]
    yield "nothing", nothing.seconds
    samples = [maker.get(index) for index in indices]
    yield "samples", timed(maker.collate, samples, seconds).seconds
    if (nothing.asked or 0.0) < _LEAST_ASKED:
        yield "not reads", "no read of a file was seen: maps and sockets cannot be answered from memory"
        return
    try:
        with Answers().answering():
            for index in indices:
                maker.make(index)  # every read for real, and kept
            answered = maker.over(indices, seconds)
    except (OSError, ValueError, TypeError) as error:  # a memory file has no number, and is no file to C code
        yield "not reads", f"not to be answered from memory: {type(error).__name__}: {error}"
        return
    yield from _told(nothing, answered)


def _told(nothing: Pass, answered: Pass) -> Iterator[Telling]:
    left = (answered.asked or 0.0) / (nothing.asked or 1.0)
    if left > _LEFT:
        yield "not reads", f"{left:.0%} of the bytes are read in ways that cannot be answered from memory"
    else:
        yield "reads", answered.seconds


class Answers:
    """What was read, by file, place and size; asked for again it comes from here."""

    def __init__(self) -> None:
        self._whole: dict[str, bytes] = {}
        self._parts: dict[tuple[int, int, int, int], bytes] = {}
        self._kept = 0

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While this lasts, files opened for reading are files in memory, and reads are answered."""
        numpy: Any = sys.modules.get("numpy")
        stand_ins: list[tuple[Any, str, Callable[..., Any]]] = [
            (builtins, "open", self._opener(io.open)),
            (io, "open", self._opener(io.open)),
            (os, "read", self._reader(os.read)),
        ]
        if hasattr(os, "pread"):  # not on Windows
            stand_ins.append((os, "pread", self._reader_at(os.pread)))
        if numpy is not None:
            stand_ins.append((numpy, "fromfile", _reader_of_arrays(numpy.fromfile, numpy)))
        real = [(place, name, getattr(place, name)) for place, name, _ in stand_ins]
        try:
            for place, name, stand_in in stand_ins:
                setattr(place, name, stand_in)
            yield
        finally:
            for place, name, own in real:
                setattr(place, name, own)

    def _keep(self, data: bytes) -> bytes:
        self._kept += len(data)
        if self._kept > _MOST_KEPT:
            raise OSError(f"more than {_MOST_KEPT >> 20} MB would have to be kept")
        return data

    def _opener(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if isinstance(file, int) or set(mode) - set("rbt") or opener is not None:
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            path = os.fspath(file)
            data = self._whole.get(path)
            if data is None:
                with real(path, "rb") as whole:
                    data = self._whole[path] = self._keep(whole.read())
            memory = io.BytesIO(data)
            return memory if "b" in mode else io.TextIOWrapper(memory, encoding, errors, newline)

        return open

    def _reader(self, real: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        def read(handle: int, size: int, /) -> bytes:
            try:
                at = os.lseek(handle, 0, os.SEEK_CUR)
            except OSError:  # a pipe
                return real(handle, size)
            data = self._part(handle, size, at, lambda: real(handle, size))
            os.lseek(handle, at + len(data), os.SEEK_SET)
            return data

        return read

    def _reader_at(self, real: Callable[[int, int, int], bytes]) -> Callable[[int, int, int], bytes]:
        def pread(handle: int, size: int, at: int, /) -> bytes:
            return self._part(handle, size, at, lambda: real(handle, size, at))

        return pread

    def _part(self, handle: int, size: int, at: int, read: Callable[[], bytes]) -> bytes:
        told = os.fstat(handle)
        key = (told.st_dev, told.st_ino, at, size)
        data = self._parts.get(key)
        if data is None:
            data = self._parts[key] = self._keep(read())
        return data


def _reader_of_arrays(real: Callable[..., Any], numpy: Any) -> Callable[..., Any]:
    """`np.fromfile`, which asks a file for its number: a file in memory has none."""

    def fromfile(file: Any, dtype: Any = float, count: int = -1, *args: Any, **more: Any) -> Any:
        if not isinstance(file, io.BytesIO) or args or more:
            return real(file, dtype, count, *args, **more)
        each = numpy.dtype(dtype).itemsize
        data = file.read(-1 if count < 0 else count * each)
        return numpy.frombuffer(data, dtype, len(data) // each).copy()

    return fromfile
