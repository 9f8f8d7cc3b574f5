"""A wish to stop, told by a signal: the step ends, the state is saved, and then the training does."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_ASKING = (signal.SIGTERM, signal.SIGINT)
# To a person at a terminal, who sees nothing else while data are made or a long step ends.
_HEARD = b"Ctrl-C: heard; it ends after this step, and saves. Once more ends it at once\n"
_STDERR = 2


class Stopped(BaseException):
    """A signal came where nothing has to be brought to its end first; no `except Exception` keeps it."""


class StopSignal:
    """Hears SIGTERM and the first Ctrl-C inside a `with` block; a second Ctrl-C interrupts as ever.

    Signals reach a process's main thread alone: elsewhere nothing is heard, and nothing is changed.
    """

    def __init__(self) -> None:
        self.heard: str | None = None
        self._before: dict[int, Any] = {}
        self._at_once = False

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in _ASKING:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def is_heard(self) -> bool:
        """Whether one came."""
        return self.heard is not None

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block a signal raises Stopped where it comes, and so does one that came before."""
        self._at_once = True
        try:
            if self.heard is not None:
                raise Stopped
            yield
        finally:
            self._at_once = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.heard is not None:
            raise KeyboardInterrupt
        if number == signal.SIGINT and not self._at_once:
            os.write(_STDERR, _HEARD)  # not by sys.stderr: it may be amid a line, and cannot be entered twice
        self.heard = signal.Signals(number).name
        if self._at_once:
            self._at_once = False  # what is left to be closed is closed in peace
            raise Stopped
