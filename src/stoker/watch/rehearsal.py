"""What taking a step's notes costs here, measured beside the run.

Clocks around every note would cost as much as the notes. So the recorder's thread takes the notes of one
plain step itself, once a round: on the same machine, in the same load, and with code as cold as it is on the
training thread. What calls the notes (the hooks around torch's functions) is not in it.
"""

from collections import deque
from statistics import median
from time import perf_counter_ns

from torch import nn

from stoker.watch.loaders import Loader
from stoker.watch.observer import Observer

_KEPT = 64
# Notes of a plain step.
NOTES = 8


class Rehearsal:
    """Notes of a step that nobody trains. Made and run on the thread that rehearses."""

    def __init__(self) -> None:
        self._observer = Observer()
        self._observer.roots.fixed = True  # nothing is to be searched for
        self._loader = Loader(id=0, name="rehearsal")
        self._module = nn.Identity()
        self._observer.knows(self)
        self._took: deque[int] = deque(maxlen=_KEPT)

    def run(self) -> None:
        """Take one step's notes, and throw them away."""
        observer = self._observer
        began = perf_counter_ns()
        here = observer.begin_draw(self._loader)
        observer.end_draw(self._loader, 1, here=here)
        observer.timed_call(self._module, _nothing, (), {})
        observer.timed_backward(_nothing, (), {})
        observer.before_step(self, (self,), {})
        observer.after_step(self)
        self._took.append(perf_counter_ns() - began)
        observer.notes.clear()

    @property
    def note_us(self) -> float | None:
        """Microseconds a note, by the median of the last rehearsals."""
        return median(self._took) / 1e3 / NOTES if self._took else None


def _nothing() -> None:
    pass
