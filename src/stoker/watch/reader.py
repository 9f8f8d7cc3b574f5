"""Makes sense of the notes: phases, draws and their fates, and the steps that updates end.

The training thread only takes notes (`observer.py`); they are read here, in the order in which they were
taken. Nothing here looks at a clock or at the device.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from stoker.watch import notes as n
from stoker.watch.cycle import Cycle
from stoker.watch.loaders import Draw, Fate, Loader, Loaders
from stoker.watch.notes import Moment, unpacked
from stoker.watch.part import Met, Part, part_of
from stoker.watch.phases import BACKWARD, COPY, DRAW, FORWARD, GRAPH, OTHER, PHASES, UPDATE, WAIT
from stoker.watch.timeline import Timeline

_COMPUTING = (FORWARD, BACKWARD)
# Collectives of a step that are kept: enough for any loop that calls them itself.
_MOST_MET = 64


class Reader:
    """Reads one run's notes. `done` holds the steps, as lists of parts, that are complete."""

    def __init__(self) -> None:
        self.loaders = Loaders()
        self.done: deque[list[Part]] = deque()
        self.updates = 0
        self.read_notes = 0
        self.paused = 0.0
        self.device: int | None = None
        self._aside: deque[n.Aside] = deque()
        self._timeline = Timeline()
        self._cycle: Cycle[Part] = Cycle()
        self._drawing: list[Draw] = []
        self._draws: list[Draw] = []
        self._pairs: list[int] = []
        self._met: list[Met] = []
        self._at: tuple[int, Moment, int] | None = None
        self._gc = self._gc_wait = 0
        self._given_up = 0
        self._unix_less_clock = 0.0
        by_note: dict[int, Callable[[int, Any, Any], None]] = {
            n.ITER_BEGINS: self._iter_begins,
            n.DRAW_BEGINS: self._draw_begins,
            n.EVALUATION_DRAW_BEGINS: self._evaluation_draw_begins,
            n.DRAW_ENDS: self._draw_ends,
            n.DRAW_FAILS: self._draw_fails,
            n.FORWARD_BEGINS: self._forward_begins,
            n.ANSWERED: self._answered,
            n.BACKWARD_BEGINS: self._backward_begins,
            n.UPDATE_BEGINS: self._update_begins,
            n.UPDATE_ENDS: self._update_ends,
            n.CLOSURE_BEGINS: self._closure_begins,
            n.WAIT_BEGINS: self._wait_begins,
            n.COPY_BEGINS: self._copy_begins,
            n.COPY_WAS_NONE: self._copy_was_none,
            n.COPIED_BESIDE: self._copied_beside,
            n.GRAPH_BEGINS: self._graph_begins,
            n.GRAPH_ENDS: self._graph_ends,
            n.PHASE_ENDS: self._phase_ends,
            n.LOOP_BEGINS: self._loop_begins,
            n.STEP_MARKED: self._step_marked,
            n.PAUSE_ENDS: self._pause_ends,
            n.DEVICE_FOUND: self._device_found,
            n.OPTIMIZERS_KNOWN: self._optimizers_known,
            n.ARRIVED: self._arrived,
            n.RELEASED: self._released,
            n.COLLECTED: self._collected,
        }
        self._handlers = [by_note[what] for what in range(len(by_note))]

    def read(self, notes: list[Any], aside: Iterable[n.Aside] = (), unix_less_clock: float = 0.0) -> None:
        """Read these notes, which follow those read before; `aside` is what other threads drew meanwhile."""
        handle = self._handlers
        self._aside.extend(aside)
        drawn_aside = self._aside
        self._unix_less_clock = unix_less_clock
        self.read_notes += len(notes) // n.WIDTH
        values = iter(notes)
        for what, now, moment, more in zip(values, values, values, values, strict=True):
            if drawn_aside and drawn_aside[0][0] <= now:
                self._read_aside(now)
            handle[what](now, moment, more)

    def finish(self) -> None:
        """No more notes will come."""
        self.done.extend(self._cycle.flush())

    def _read_aside(self, now: int) -> None:
        """What other threads drew until then."""
        while self._aside and self._aside[0][0] <= now:
            _, what, number, samples = self._aside.popleft()
            loader = self.loaders[number]
            if what == n.ITER_BEGINS:
                self._new_epoch(loader)
            else:
                draw = self.loaders.draw(loader, background=True, evaluating=False)
                self.loaders.drawn(draw, samples)
                self._draws.append(draw)

    # --- draws -----------------------------------------------------------------------------------

    def _new_epoch(self, loader: Loader) -> None:
        loader.startup = True
        loader.epochs += 1
        loader.drawn = 0

    def _iter_begins(self, now: int, moment: Moment, number: int) -> None:
        loader = self.loaders[number]
        self._new_epoch(loader)
        self._draw(Draw(loader, startup=True), now, moment)

    def _draw_begins(self, now: int, moment: Moment, number: int) -> None:
        self._draw(self.loaders.draw(self.loaders[number], background=False, evaluating=False), now, moment)

    def _evaluation_draw_begins(self, now: int, moment: Moment, number: int) -> None:
        self._draw(self.loaders.draw(self.loaders[number], background=False, evaluating=True), now, moment)

    def _draw(self, draw: Draw, now: int, moment: Moment) -> None:
        self._enter(n.DRAW_BEGINS, DRAW, now, moment)
        self._drawing.append(draw)

    def _draw_ends(self, now: int, moment: Moment, samples: int | None) -> None:
        if self._drawing:
            # A loader that draws from another hands the same samples on: the outer one's count.
            self.loaders.drawn(self._drawing[-1], samples if len(self._drawing) == 1 else None)
        self._draw_fails(now, moment, None)

    def _draw_fails(self, now: int, moment: Moment, _: None) -> None:
        if not self._drawing:
            return
        draw, timeline = self._drawing.pop(), self._timeline
        if not timeline.leave(n.DRAW_BEGINS, now, moment, mark=draw):
            return
        draw.ns = timeline.take(DRAW)
        if draw.fate is Fate.EVALUATED:  # for good: a run may go on to evaluate alone, and never cut again
            timeline.totals[OTHER] += draw.ns
        else:
            self._draws.append(draw)

    def _wait_begins(self, now: int, moment: Moment, _: None) -> None:
        current = self._timeline.current
        self._inside(n.WAIT_BEGINS, WAIT if current == OTHER else current, now, moment)

    # --- forward, backward, copies ---------------------------------------------------------------

    def _forward_begins(self, now: int, moment: Moment, _: None) -> None:
        current = self._timeline.current
        if current in _COMPUTING:  # a root inside another; recomputing in backward
            self._inside(n.FORWARD_BEGINS, current, now, moment)
            return
        self.loaders.forward()
        self._enter(n.FORWARD_BEGINS, FORWARD, now, moment)

    def _answered(self, now: int, moment: Moment, _: None) -> None:
        if self._timeline.current not in _COMPUTING:
            self.loaders.forward_without_gradients()

    def _backward_begins(self, now: int, moment: Moment, _: None) -> None:
        if self._timeline.current != BACKWARD:
            self.loaders.backward()
        self._inside(n.BACKWARD_BEGINS, BACKWARD, now, moment)

    def _copy_begins(self, now: int, moment: Moment, _: None) -> None:
        self._inside(n.COPY_BEGINS, COPY, now, moment)

    def _copy_was_none(self, now: int, moment: Moment, _: None) -> None:
        if self._timeline.begun == n.COPY_BEGINS:
            self._timeline.disown()
        self._timeline.leave(n.COPY_BEGINS, now, moment)

    def _copied_beside(self, now: int, moment: Moment, pair: int) -> None:
        self._pairs.append(pair)

    def _phase_ends(self, now: int, moment: Moment, begun: int) -> None:
        self._timeline.leave(begun, now, moment)

    def _enter(self, begun: int, phase: int, now: int, moment: Moment) -> None:
        """Begin a draw or forward. An update that is still open around it was left by an exception.

        Or it has a closure that was not seen as one: then its end is still to come.
        """
        timeline = self._timeline
        while timeline.begun == n.UPDATE_BEGINS:
            timeline.leave(n.UPDATE_BEGINS, now, moment)
            self._given_up += 1
        self._inside(begun, phase, now, moment)

    def _inside(self, begun: int, phase: int, now: int, moment: Moment) -> None:
        drawing = self._drawing[-1] if self._drawing else None
        self._timeline.enter(begun, phase, now, moment, inside=drawing)

    # --- updates ---------------------------------------------------------------------------------

    def _update_begins(self, now: int, moment: Moment, _: None) -> None:
        self._given_up = 0
        self._inside(n.UPDATE_BEGINS, UPDATE, now, moment)

    def _update_ends(self, now: int, moment: Moment, optimizer: int | None) -> None:
        timeline = self._timeline
        if not timeline.leave(n.UPDATE_BEGINS, now, moment):
            if not self._given_up:
                return
            self._given_up -= 1
            timeline.book(now, moment)
        if optimizer is not None and not self._given_up and not timeline.is_open(n.UPDATE_BEGINS):
            self._cut(optimizer, now)

    def _closure_begins(self, now: int, moment: Moment, _: None) -> None:
        self._inside(n.CLOSURE_BEGINS, OTHER, now, moment)

    def _graph_begins(self, now: int, moment: Moment, _: None) -> None:
        current = self._timeline.current
        self._inside(n.GRAPH_BEGINS, GRAPH if current == OTHER else current, now, moment)

    def _graph_ends(self, now: int, moment: Moment, optimizer: int | None) -> None:
        self._timeline.leave(n.GRAPH_BEGINS, now, moment)
        if optimizer is not None:
            self.loaders.backward()
            self._cut(optimizer, now)

    def _step_marked(self, now: int, moment: Moment, _: None) -> None:
        self._timeline.book(now, moment)
        self.loaders.backward()
        self._cut("marked", now)

    def _cut(self, optimizer: int | str, now: int) -> None:
        totals, marks, start = self._timeline.cut()
        part = part_of(self._unix_less_clock + now / 1e9, totals, self._draws, start, marks, self._pairs)
        part.met, part.gc, part.gc_wait = self._met, self._gc, self._gc_wait
        self._draws, self._pairs, self._met = [], [], []
        self._gc = self._gc_wait = 0
        self.updates += 1
        self.done.extend(self._cycle.add(optimizer, part))

    # --- beside the phases -------------------------------------------------------------------------

    def _arrived(self, now: int, moment: Moment, more: int) -> None:
        self._at = now, moment, more

    def _released(self, now: int, moment: Moment, waited: bool) -> None:
        at, self._at = self._at, None
        if at is None or not waited or len(self._met) >= _MOST_MET:
            return
        came, there, more = at
        kind, size = unpacked(more)
        current = self._timeline.current
        phase = PHASES[current] if current < len(PHASES) else PHASES[OTHER]
        clock = self._unix_less_clock
        self._met.append(Met(kind, size, phase, clock + came / 1e9, clock + now / 1e9, (there, moment)))

    def _collected(self, now: int, moment: Moment, spent: int) -> None:
        self._gc += spent
        if self._timeline.current in (DRAW, WAIT):
            self._gc_wait += spent

    # --- the run ---------------------------------------------------------------------------------

    def _loop_begins(self, now: int, moment: Moment, moved: bool) -> None:
        if moved:
            self._timeline.forget()
            self._drawing, self._draws, self._pairs = [], [], []
        self._timeline.restart(now, moment)

    def _pause_ends(self, now: int, moment: Moment, _: None) -> None:
        self._timeline.book(now, moment)
        spent = sum(self._timeline.cut()[0]) / 1e9
        if self.updates:
            self.paused += spent

    def _device_found(self, now: int, moment: Moment, device: int) -> None:
        self.device = device
        self._timeline.on_device = True
        self._timeline.marks.clear()
        self._timeline.start = moment

    def _optimizers_known(self, now: int, moment: Moment, count: int) -> None:
        self._cycle.expect(count)
