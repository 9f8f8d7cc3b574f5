"""The training thread's time, cut into phases: on the host's clock, and on the device's where there is one.

The thread is always in one phase. `enter` begins another inside it, `leave` goes back, and each books the
time since the last of them on the phase that ends. Pure: times and moments are the notes'.
"""

from typing import TypeAlias

from stoker.watch.loaders import Draw
from stoker.watch.notes import Moment
from stoker.watch.phases import DRAW, OTHER

# A phase that ended, or the draw whose time it was; what tells the device's time there; the host's time.
Mark: TypeAlias = tuple[int | Draw, Moment, int]


class Timeline:
    """Exclusive time by phase, in nanoseconds, since the last `cut`.

    A phase is ended by what it was begun with, so that one that never ended (an exception on its way through
    an optimizer) cannot swallow what comes after it. `marks` stays empty without a device.
    """

    __slots__ = ("_open", "begun", "current", "marks", "on_device", "since", "start", "totals")

    def __init__(self) -> None:
        self.current = OTHER
        self.begun: int | None = None
        self.since = 0
        self.totals = [0] * (DRAW + 1)
        self.marks: list[Mark] = []
        self.start: Moment = None
        self.on_device = False
        # What is suspended: what it was begun with, and its phase.
        self._open: list[tuple[int | None, int]] = []

    def is_open(self, begun: int) -> bool:
        """Whether a phase begun with this has not ended."""
        return self.begun == begun or any(one == begun for one, _ in self._open)

    def enter(self, begun: int, phase: int, now: int, moment: Moment, *, inside: Draw | None = None) -> None:
        """Begin a phase inside whatever runs now; `inside` is the draw, if that is one."""
        current = self.current
        self.totals[current] += now - self.since
        self.since = now
        if self.on_device:
            self.marks.append((current if inside is None or current != DRAW else inside, moment, now))
        self._open.append((self.begun, current))
        self.begun = begun
        self.current = phase

    def leave(self, begun: int, now: int, moment: Moment, *, mark: Draw | None = None) -> bool:
        """End the innermost phase begun with this, and any left open inside it; False if there is none."""
        if self.begun != begun:
            if not self.is_open(begun):
                return False
            while self.begun != begun:
                self.book(now, moment)
                self.begun, self.current = self._open.pop()
        self.totals[self.current] += now - self.since
        self.since = now
        if self.on_device:
            self.marks.append((self.current if mark is None else mark, moment, now))
        self.begun, self.current = self._open.pop()
        return True

    def disown(self) -> None:
        """The current phase is not what it seemed: its time belongs to the one around it."""
        self.current = self._open[-1][1]

    def book(self, now: int, moment: Moment) -> None:
        """The time since the last booking was the current phase's."""
        self.totals[self.current] += now - self.since
        self.since = now
        if self.on_device:
            self.marks.append((self.current, moment, now))

    def take(self, phase: int) -> int:
        """What was booked on a phase; it is nobody's then."""
        spent, self.totals[phase] = self.totals[phase], 0
        return spent

    def cut(self) -> tuple[list[int], list[Mark], Moment]:
        """Everything since the last cut: nanoseconds by phase, marks, and the event where they begin."""
        totals, self.totals = self.totals, [0] * (DRAW + 1)
        marks, self.marks = self.marks, []
        start = self.start
        if marks:
            self.start = marks[-1][1]
        return totals, marks, start

    def restart(self, now: int, moment: Moment) -> None:
        """What was before is nobody's: the next stretch starts now, inside whatever is open."""
        self.cut()
        self.since = now
        self.start = moment

    def forget(self) -> None:
        """What is open was another thread's."""
        self._open.clear()
        self.begun, self.current = None, OTHER
