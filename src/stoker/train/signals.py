"""A wish to stop, told by a signal: the step ends, the state is saved, and then the training does."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ASKING = (signal.SIGTERM, signal.SIGINT)
# To a person at a terminal, who sees nothing else while data are made or a long step ends.
_HEARD = b"Ctrl-C: heard; it ends after this step, and saves. Once more ends it at once\n"
_STDERR = 2


class StopSignal:
    """Hears SIGTERM and the first Ctrl-C inside a `with` block; a second Ctrl-C interrupts as ever.

    Signals reach a process's main thread alone: elsewhere nothing is heard, and nothing is changed.
    """

    def __init__(self) -> None:
        self.heard: str | None = None
        self._before: dict[int, Any] = {}

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

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.heard is not None:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            os.write(_STDERR, _HEARD)  # not by sys.stderr: it may be amid a line, and cannot be entered twice
        self.heard = signal.Signals(number).name
