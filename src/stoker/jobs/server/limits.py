"""How much a caller may ask: requests a second, by where they come from. The clock is given."""

from collections import OrderedDict
from collections.abc import Callable

_MOST_CALLERS = 10_000


class Buckets:
    """A bucket a caller: `burst` requests at once, `rate` a second after that.

    >>> now = 0.0
    >>> buckets = Buckets(rate=1.0, burst=2, clock=lambda: now)
    >>> [buckets.take("ann") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._filled: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0 where the caller may go on; else seconds to wait first."""
        level, now = self._level(caller)
        wait = self._wait(level)
        self._filled[caller] = (level if wait else level - 1, now)
        self._filled.move_to_end(caller)
        if len(self._filled) > _MOST_CALLERS:  # the one not heard of for longest has a full bucket by now
            self._filled.popitem(last=False)
        return wait

    def peek(self, caller: str) -> float:
        """Seconds to wait before the next one, taking nothing."""
        return self._wait(self._level(caller)[0])

    def _level(self, caller: str) -> tuple[float, float]:
        now = self._clock()
        level, since = self._filled.get(caller, (self._burst, now))
        return min(self._burst, level + (now - since) * self._rate), now

    def _wait(self, level: float) -> float:
        return 0.0 if level >= 1 else (1 - level) / self._rate
