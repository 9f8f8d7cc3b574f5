"""How fast a training is, and when it will end: sustained, so with stalls, validation and saving in it."""

import time
from collections.abc import Callable


class Pace:
    """Samples and steps over wall time, counted from the end of the first step of this process.

    The first step compiles, plans and warms up, and would count again after every resume.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._last = 0.0
        self._steps = self._samples = 0

    def add(self, samples: int) -> None:
        """One more step has ended."""
        self._last = self._clock()
        if self._began is None:
            self._began = self._last
            return
        self._steps += 1
        self._samples += samples

    @property
    def samples_per_second(self) -> float | None:
        """The sustained rate; None before the second step."""
        return self._samples / self._seconds if self._seconds else None

    def eta(self, steps: int) -> float | None:
        """Seconds for so many more steps at the sustained rate."""
        return steps * self._seconds / self._steps if self._steps else None

    @property
    def _seconds(self) -> float:
        return 0.0 if self._began is None else self._last - self._began
