"""The training thread's time, cut into phases: on the host's clock, and on the device's where there is one.

The thread is always in one phase. `enter` begins another inside it, `leave` goes back, and each books the
time since the last of them on the phase that ends. Pure: the times and events are the notes'.
"""

from stoker.watch.device import Event
from stoker.watch.phases import DRAW, OTHER


class Timeline:
    """Exclusive time by phase, in nanoseconds, since the last `cut`.

    A phase is ended by what it was begun with, so that one that never ended (an exception on its way through
    an optimizer) cannot swallow what comes after it. `marks` holds each phase that ended and the event there;
    it stays empty without a device.
    """

    def __init__(self) -> None:
        self.current = OTHER
        self.since = 0
        self.totals = [0] * (DRAW + 1)
        self.marks: list[tuple[int, Event | None]] = []
        self.start: Event | None = None
        self.on_device = False
        self._open: list[tuple[int, int]] = []

    def innermost(self) -> int | None:
        """What the current phase was begun with."""
        return self._open[-1][0] if self._open else None

    def is_open(self, begun: int) -> bool:
        """Whether a phase begun with this has not ended."""
        return any(one == begun for one, _ in self._open)

    def enter(self, begun: int, phase: int, now: int, event: Event | None) -> None:
        """Begin a phase inside whatever runs now."""
        self.book(self.current, now, event)
        self._open.append((begun, self.current))
        self.current = phase

    def leave(self, begun: int, now: int, event: Event | None, *, mark: int | None = None) -> bool:
        """End the innermost phase begun with this, and any left open inside it; False if there is none.

        `mark` is what the device's mark says in place of the phase.
        """
        depth = len(self._open)
        while depth:
            depth -= 1
            if self._open[depth][0] == begun:
                self.book(self.current, now, event, mark=mark)
                self.current = self._open[depth][1]
                del self._open[depth:]
                return True
        return False

    def disown(self) -> None:
        """The current phase is not what it seemed: its time belongs to the one around it."""
        self.current = self._open[-1][1]

    def book(self, phase: int, now: int, event: Event | None, *, mark: int | None = None) -> None:
        """The time since the last booking was this phase's."""
        self.totals[phase] += now - self.since
        self.since = now
        if self.on_device:
            self.marks.append((phase if mark is None else mark, event))

    def take(self, phase: int) -> int:
        """What was booked on a phase; it is nobody's then."""
        spent, self.totals[phase] = self.totals[phase], 0
        return spent

    def cut(self) -> tuple[list[int], list[tuple[int, Event | None]], Event | None]:
        """Everything since the last cut: nanoseconds by phase, marks, and the event where they begin."""
        totals, self.totals = self.totals, [0] * (DRAW + 1)
        marks, self.marks = self.marks, []
        start = self.start
        if marks:
            self.start = marks[-1][1]
        return totals, marks, start

    def restart(self, now: int, event: Event | None) -> None:
        """What was before is nobody's: the next stretch starts now."""
        self.cut()
        self.since = now
        self.start = event
