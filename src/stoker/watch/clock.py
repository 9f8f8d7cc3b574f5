"""The device's clock beside the host's: where an idle mark lies between the events around it.

An event passes when the host has recorded it and the device has got there, so its time on the device's clock
is never earlier than the host's clock said, and the smallest difference seen lately is how the two clocks
stand to each other. A mark at which the device had nothing to do lies where the host's clock puts it.
"""

from collections.abc import Iterable
from math import inf
from typing import TypeAlias

from stoker.watch.device import IDLE, Event, Moment

# A phase that ended, whether that was a loader starting, what tells the device's time there, the host's time.
PhaseEnd: TypeAlias = tuple[int, bool, Moment, int]
# A difference counts for this long, and then as long again. The observer records an event on the idle device
# more often (`observer._ANCHOR_NS`). Clocks that drift apart by 100 millionths put a mark 0.1 ms off by then.
_WINDOW_NS = 500_000_000


class DeviceClock:
    """Places marks on the device's timeline, part after part, in the order in which they were made."""

    def __init__(self) -> None:
        self._event: Event | None = None
        # Nanoseconds on the device's clock at that event, since the first.
        self._at = 0.0
        # The least by which it was seen ahead of the host's, in this window and in the one before.
        self._lead = self._lead_before = inf
        self._window_ns = 0

    def spans(self, start: Event, marks: Iterable[PhaseEnd]) -> list[float] | None:
        """Nanoseconds by the device up to each mark from the one before; None where one has no event.

        Never negative, and together they are the time from the first event to the last: an idle mark is held
        between its neighbours.
        """
        event = self._seek(start)
        passed = at = self._at
        spans: list[float] = []
        idle: list[int] = []
        for _, _, moment, host_ns in marks:
            if moment is IDLE:
                idle.append(host_ns)
                continue
            if moment is None:
                return None
            if moment is not event:  # one that serves for two marks was recorded at the first
                self._at = at = at + event.elapsed_time(moment) * 1e6
                self._event = event = moment
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
        return None if idle else spans

    def _seek(self, event: Event) -> Event:
        """Go to an event; those before it may have been left out of the parts, as those of a pause are."""
        if event is not self._event:
            if self._event is not None:
                self._at += self._event.elapsed_time(event) * 1e6
            self._event = event
        return event

    def _read(self, lead: float, host_ns: int) -> None:
        """The device's clock was so far ahead of the host's, or less: the device may have been busy."""
        if host_ns > self._window_ns:
            fresh = host_ns <= self._window_ns + _WINDOW_NS
            self._lead_before, self._lead = (self._lead if fresh else inf), inf
            self._window_ns = host_ns + _WINDOW_NS
        self._lead = min(self._lead, lead)
