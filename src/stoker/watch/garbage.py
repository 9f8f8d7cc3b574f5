"""Garbage collection by Python: how long the interpreter stood still for it.

Whatever thread it begins on holds the interpreter until it is over, so that it is the loop's time too.
"""

import gc
from time import perf_counter_ns
from typing import Any, Protocol

from stoker.watch.notes import COLLECTED, Take

# Rounds of young objects come every few steps and take some 20 us each: they are told together.
_WORTH_A_NOTE_NS = 200_000


class _Notes(Protocol):
    take: Take


class Garbage:
    """Has the collector's rounds noted, from `start` to `stop`."""

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes
        self._began = self._spent = 0

    def start(self) -> None:
        """From now on."""
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """No longer. A script may have emptied the collector's list."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, _: dict[str, Any]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            self._began = now
            return
        if not self._began:  # begun before this was there
            return
        self._spent += now - self._began
        if self._spent >= _WORTH_A_NOTE_NS:
            self._notes.take((COLLECTED, self._began, None, self._spent))
            self._spent = 0
