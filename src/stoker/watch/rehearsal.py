"""What taking a step's notes costs here at the least, measured beside the run.

Clocks around every note would cost as much as the notes. So the recorder's thread takes the notes of a plain
step itself, in its first rounds and then once a minute: twice to warm up, since after half a second's sleep
they take it some 45 us, which no training thread pays (2 cores, torch 2.13), and then by the clock. What
calls the notes (the hooks around torch's functions) is not in it, nor what they cost more among other work.
"""

from collections import deque
from statistics import median
from time import thread_time_ns

from torch import nn

from stoker.watch.known import KnownLoader
from stoker.watch.observer import Observer

_KEPT = 64
# Notes of a plain step.
NOTES = 8


class Rehearsal:
    """Notes of a step that nobody trains. Made and run on the thread that rehearses."""

    param_groups = ()  # for the observer it is the optimizer: one of nothing

    def __init__(self) -> None:
        self._observer = Observer()
        self._observer.roots.fixed = True  # nothing is to be searched for
        self._loader = KnownLoader(id=0, name="rehearsal")
        self._module = nn.Identity()
        self._observer.knows(self)
        self._took: deque[int] = deque(maxlen=_KEPT)

    def run(self) -> None:
        """Take a step's notes, and throw them away."""
        self._take_notes()
        self._take_notes()
        began = thread_time_ns()  # not the wait for the interpreter, which the training thread has
        self._take_notes()
        self._took.append(thread_time_ns() - began)
        self._observer.notes.clear()

    def _take_notes(self) -> None:
        observer = self._observer
        here = observer.begin_draw(self._loader)
        observer.end_draw(self._loader, 1, here=here)
        observer.timed_call(self._module, _nothing, (), {})
        observer.timed_backward(_nothing, (), {})
        observer.before_step(self, (self,), {})
        observer.after_step(self)

    @property
    def note_us(self) -> float | None:
        """Microseconds a note, by the median of the last rehearsals."""
        return median(self._took) / 1e3 / NOTES if self._took else None


def _nothing() -> None:
    pass
