"""The device's clock beside the host's: when each event passed, and where an idle mark lies between them.

An event passes when the host has recorded it and the device has got there, so its time on the device's clock
is never earlier than the host's clock said, and the smallest difference seen lately is how the two clocks
stand to each other. A mark at which the device had nothing to do lies where the host's clock puts it.
"""

from collections.abc import Iterable
from math import inf
from typing import TypeAlias

from stoker.watch.notes import IDLE, Moment

# A phase that ended, whether that was a loader starting, what tells the device's time there, the host's time.
PhaseEnd: TypeAlias = tuple[int, bool, Moment, int]
# A difference counts for this long, and then as long again. The observer records an event on the idle device
# more often (`observer._ANCHOR_NS`). Clocks that drift apart by 100 millionths put a mark 0.1 ms off by then.
_WINDOW_NS = 500_000_000


class DeviceClock:
    """Places marks on the device's timeline, part after part, in the order in which they were made.

    Events are told by number; their times come in later (`pass_marks`), and are forgotten behind the last
    mark that was placed.
    """

    def __init__(self) -> None:
        self.marks_passed = 0
        self.pairs_passed = 0
        # Nanoseconds on the device's clock, by event; nanoseconds that each pair of events encloses.
        self._at: dict[int, float] = {}
        self._now = 0.0
        self._enclosed: dict[int, float] = {}
        self._last = 0
        # The least by which the device's clock was seen ahead, in this window and in the one before.
        self._lead = self._lead_before = inf
        self._window_ns = 0
        self._epoch: float | None = None

    def pass_marks(self, milliseconds: Iterable[float]) -> None:
        """The device has passed the next events, each so long after the one before it."""
        at, now = self._at, self._now
        for number, each in enumerate(milliseconds, self.marks_passed):
            now += each * 1e6
            at[number] = now
            self.marks_passed = number + 1
        self._now = now

    def pass_pairs(self, milliseconds: Iterable[float]) -> None:
        """The device has passed the next pairs of events, which enclose so much."""
        for number, each in enumerate(milliseconds, self.pairs_passed):
            self._enclosed[number] = each * 1e6
            self.pairs_passed = number + 1

    def take_pair(self, number: int) -> float:
        """Nanoseconds that a pair encloses; asked for once."""
        return self._enclosed.pop(number)

    def unix_of(self, moment: Moment, host: float) -> float | None:
        """When the device passed a mark that the host made at this Unix time; None where it tells nothing.

        By the device's clock alone: it was laid on the host's once, at the first that was asked for, so that
        the time between two of them is the device's own.
        """
        at = None if moment is None else self._at.get(moment)
        if at is None:
            return None
        if self._epoch is None:
            self._epoch = host - at / 1e9
        return self._epoch + at / 1e9

    def spans(self, start: int, marks: Iterable[PhaseEnd]) -> list[float] | None:
        """Nanoseconds by the device up to each mark from the one before; None where one has no event.

        Never negative, and together they are the time from the first event to the last: an idle mark is held
        between its neighbours.
        """
        last, passed = start, self._at[start]
        at = passed
        spans: list[float] = []
        idle: list[int] = []
        for _, _, moment, host_ns in marks:
            if moment == IDLE:
                idle.append(host_ns)
                continue
            if moment is None:
                return None
            if moment != last:  # one that serves for two marks was recorded at the first
                last, at = moment, self._at[moment]
                if at - host_ns < self._lead or host_ns > self._window_ns:
                    self._read(at - host_ns, host_ns)
            if idle:
                lead = min(self._lead, self._lead_before)
                for idle_ns in idle:
                    there = min(max(passed, idle_ns + lead), at)
                    spans.append(there - passed)
                    passed = there
                idle.clear()
            spans.append(at - passed)
            passed = at
        self._forget(last)
        return None if idle else spans

    def _forget(self, before: int) -> None:
        """The next part begins at this event, or later."""
        at = self._at
        for number in range(self._last, before):
            at.pop(number, None)
        self._last = before

    def _read(self, lead: float, host_ns: int) -> None:
        """The device's clock was so far ahead of the host's, or less: the device may have been busy."""
        if host_ns > self._window_ns:
            fresh = host_ns <= self._window_ns + _WINDOW_NS
            self._lead_before, self._lead = (self._lead if fresh else inf), inf
            self._window_ns = host_ns + _WINDOW_NS
        self._lead = min(self._lead, lead)
