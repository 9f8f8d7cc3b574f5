"""One run's observer: takes notes on the training thread, where every microsecond is the user's.

The hooks call this, so each method does little, and calls little: marks that took some 7 us a step in a loop
of their own took 40 among real work and 80 after a pause, when their code has left the caches (2 cores,
torch 2.13). What can wait is left to the scribe, in a process of its own.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from stoker.watch.device import Device, EventLog
from stoker.watch.known import KnownLoader, KnownLoaders
from stoker.watch.meetings import Meetings
from stoker.watch.notes import (
    ANSWERED,
    BACKWARD_BEGINS,
    CLOSURE_BEGINS,
    COPIED_BESIDE,
    COPY_BEGINS,
    COPY_WAS_NONE,
    DEVICE_FOUND,
    DRAW_BEGINS,
    DRAW_ENDS,
    DRAW_FAILS,
    EVALUATION_DRAW_BEGINS,
    FORWARD_BEGINS,
    GRAPH_BEGINS,
    GRAPH_ENDS,
    IDLE,
    ITER_BEGINS,
    LOOP_BEGINS,
    OPTIMIZERS_KNOWN,
    PAUSE_ENDS,
    PHASE_ENDS,
    STEP_MARKED,
    UPDATE_BEGINS,
    UPDATE_ENDS,
    WAIT_BEGINS,
    Aside,
    Moment,
    Note,
    Take,
)
from stoker.watch.roots import Roots, gradient_bytes_of
from stoker.watch.workers import Mailbox, Told

get_ident = threading.get_ident
_gradients = torch.is_grad_enabled
# How often the roots are looked for at once, and how deep; in how many steps modules are asked for a device.
_SEARCHES = 6
# A gap between two phases that is shorter than this part of a step is not worth an event of its own, which
# takes 3 to 5 us to record (H200, torch 2.11): the event before it serves for both of its ends, and what was
# launched within it is booked on the phase that follows.
_GAP_SHARE = 512
_GAP_LEAST_NS, _GAP_MOST_NS = 4_000, 50_000
# For how long the host's clock serves where the device is idle, until an event tells again how the two clocks
# stand to each other (`clock.py`).
_ANCHOR_NS = 250_000_000
# A copy too small to take longer than such a gap is not timed. Pageable memory goes at 8.8 GB/s there.
_COPY_BYTES_PER_NS = 5


class Observer:
    """Watches one training thread of this process."""

    def __init__(self) -> None:
        self.thread = get_ident()
        # The same by the system's number.
        self.native = threading.get_native_id()
        self.notes: list[Any] = []
        self.take: Take = self.notes.extend
        self.aside: deque[Aside] = deque()
        self.events = EventLog()
        self.loaders = KnownLoaders()
        self.mailbox = Mailbox()
        self.roots = Roots(self.timed_call)
        self.meetings = Meetings(self)
        self.told: deque[tuple[int, Told]] = deque()
        self.device: Device | None = None
        self.device_ns = 0
        self.gradient_bytes: int | None = None
        # Whether the next draw or forward has something to see to first; whether another thread draws.
        self.unsettled = True
        self.draws_aside = False
        self._begun = False
        self._updated = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._known: set[int] = set()
        self._forward_seen = False
        self._copied_beside = False
        self._missed = 0
        self._descended = False
        self._roots_stale = False
        self._capturing: Any = None
        # Held while events are asked or a capture begins: a question from another thread would spoil it.
        self.asking = threading.Lock()
        self._graph_updates: dict[int, int] = {}
        self._device_looks = _SEARCHES if torch.cuda.is_available() else 0
        self._last: Moment = None
        self._anchored_ns = 0
        self._marked_ns = self._updated_ns = perf_counter_ns()
        self._gap_ns = _GAP_LEAST_NS
        self.smallest_copy = _GAP_LEAST_NS * _COPY_BYTES_PER_NS
        self.restart()

    def here(self) -> bool:
        """Whether this is the thread that trains."""
        return get_ident() == self.thread

    # --- on the device -----------------------------------------------------------------------------

    def mark(self, now: int) -> Moment:
        """An event where a phase ends; None during a graph's capture, which it would spoil."""
        device = self.device
        assert device is not None
        number: Moment = None
        if not device.capturing:
            event = device.make()
            device.record(event, device.stream)
            number = self.events.mark(event)
        self._last = number
        self._marked_ns = now
        self.device_ns += perf_counter_ns() - now
        return number

    def mark_begin(self, now: int) -> Moment:
        """Where a phase begins: the event before it serves, if that was recorded a moment ago."""
        last = self._last
        if last == IDLE:  # asked again: what was launched since may run for long
            return self.mark_idle(now)
        if last is not None and now - self._marked_ns < self._gap_ns:
            return last
        return self.mark(now)

    def mark_end(self, now: int) -> Moment:
        """Where a phase ends inside a step. A device that was idle at the last mark is asked again."""
        return self.mark_idle(now) if self._last == IDLE else self.mark(now)

    def mark_idle(self, now: int) -> Moment:
        """Where the device may have nothing to do. Then the host's clock tells, and no event is recorded.

        Recording one costs the loop 15 to 50 us where the device is idle, since nothing hides it (H200, torch
        2.11). Where it is busy the event is recorded, also a moment after another: one kernel launched in
        between may run for long, and is no wait. A step's end is never an idle mark.
        """
        device = self.device
        assert device is not None
        if not device.capturing and device.idle():
            if now - self._anchored_ns < _ANCHOR_NS:
                self._last = IDLE
                self._marked_ns = now
                self.device_ns += perf_counter_ns() - now
                return IDLE
            self._anchored_ns = now
        return self.mark(now)

    def _follow(self, device: Device) -> None:
        """The model runs on another stream than before; the last mark says nothing of that."""
        device.follow()
        self._last = None

    # --- draws -------------------------------------------------------------------------------------

    def begin_draw(self, loader: KnownLoader) -> bool:
        """The loop stands in `next()`. False on any other thread, where only the batch counts."""
        if get_ident() != self.thread:
            self.draws_aside = True
            return False
        what = DRAW_BEGINS if _gradients() else EVALUATION_DRAW_BEGINS
        if self.unsettled and what == DRAW_BEGINS:
            self._settle()
        now = perf_counter_ns()
        self.take((what, now, None if self.device is None else self.mark_idle(now), loader.id))
        return True

    def end_draw(self, loader: KnownLoader, samples: int | None, *, here: bool) -> None:
        """`next()` gave a batch of so many samples."""
        now = perf_counter_ns()
        if not here:
            self.aside.append((now, DRAW_ENDS, loader.id, samples))
        elif get_ident() == self.thread:
            self.take((DRAW_ENDS, now, None if self.device is None else self.mark_idle(now), samples))

    def end_without_batch(self, *, here: bool) -> None:
        """An `iter()` ended; or `next()` raised, at the epoch's end or for an error."""
        if here and get_ident() == self.thread:
            now = perf_counter_ns()
            self.take((DRAW_FAILS, now, None if self.device is None else self.mark_idle(now), None))

    def begin_iter(self, loader: KnownLoader) -> bool:
        """The loop stands in `iter()`: workers may be starting. False where that is nobody's wait."""
        now = perf_counter_ns()
        if get_ident() != self.thread or not _gradients():
            self.aside.append((now, ITER_BEGINS, loader.id, None))
            return False
        if self.unsettled:
            self._settle()
        self.take((ITER_BEGINS, now, None if self.device is None else self.mark_idle(now), loader.id))
        return True

    def begin_wait(self) -> bool:
        """The training thread blocks on another thread; with a loader there, that is waiting for data."""
        if get_ident() != self.thread:
            return False
        if self.unsettled:
            self._settle()
        now = perf_counter_ns()
        self.take((WAIT_BEGINS, now, None if self.device is None else self.mark_idle(now), None))
        return True

    def end(self, begun: int) -> None:
        """What was begun with this note ends, unless it is another thread by now that trains."""
        if get_ident() != self.thread:
            return
        now = perf_counter_ns()
        self.take((PHASE_ENDS, now, None if self.device is None else self.mark_end(now), begun))

    def end_wait(self) -> None:
        """The other thread has answered."""
        if get_ident() == self.thread:
            now = perf_counter_ns()
            self.take((PHASE_ENDS, now, None if self.device is None else self.mark_idle(now), WAIT_BEGINS))

    # --- forward, backward, copies -------------------------------------------------------------------

    def timed_call(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root module is called."""
        if get_ident() != self.thread:
            return call(*args, **kwargs)
        if not _gradients():
            self.take((ANSWERED, perf_counter_ns(), None, None))
            return call(*args, **kwargs)
        self._forward_seen = True
        if self.unsettled:
            self._settle()
        if self._device_looks:
            self._look_for_device(module)
        if self.device is not None and not self.device.on_training_stream() and self._capturing is None:
            self._follow(self.device)
        now = perf_counter_ns()
        self.take((FORWARD_BEGINS, now, None if self.device is None else self.mark_begin(now), None))
        try:
            return call(*args, **kwargs)
        finally:
            now = perf_counter_ns()
            self.take((PHASE_ENDS, now, None if self.device is None else self.mark_end(now), FORWARD_BEGINS))

    def timed_backward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Gradients are asked for."""
        if get_ident() != self.thread:
            return call(*args, **kwargs)
        if not self._forward_seen:
            self._look_deeper()
        now = perf_counter_ns()
        self.take((BACKWARD_BEGINS, now, None if self.device is None else self.mark_begin(now), None))
        meeting = self.meetings.expect(call, args, kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            now = perf_counter_ns()
            moment = None if self.device is None else self.mark_end(now)
            if meeting is not None:
                self.meetings.over(meeting, now, moment)
            self.take((PHASE_ENDS, now, moment, BACKWARD_BEGINS))

    def timed_copy(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A tensor may be about to leave the host. Beside the training stream that costs it nothing."""
        if get_ident() != self.thread:
            return call(*args, **kwargs)
        device = self.device
        if device is not None and not device.on_training_stream():
            return self._copy_beside(device, call, args, kwargs)
        now = perf_counter_ns()
        self.take((COPY_BEGINS, now, None if device is None else self.mark_begin(now), None))
        copied = False
        try:
            moved = call(*args, **kwargs)
            copied = not moved.is_cpu
            return moved
        finally:
            now = perf_counter_ns()
            event = None if device is None else self.mark_end(now)
            if copied:
                self.take((PHASE_ENDS, now, event, COPY_BEGINS))
            else:
                self.take((COPY_WAS_NONE, now, event, None))

    def _copy_beside(self, device: Device, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = device.mark_current()
        moved = call(*args, **kwargs)
        after = device.mark_current()
        if before is not None and after is not None and not moved.is_cpu:
            self._copied_beside = True
            self.take((COPIED_BESIDE, perf_counter_ns(), None, self.events.pair(before, after)))
        return moved

    def begin_stream_wait(self, stream: Any) -> bool:
        """The training stream waits for another one: for the copies there, if there were any."""
        device = self.device
        if device is None or not self._copied_beside or get_ident() != self.thread:
            return False
        if stream.cuda_stream != device.raw_stream:
            return False
        now = perf_counter_ns()
        self.take((COPY_BEGINS, now, self.mark_begin(now), None))
        return True

    def end_stream_wait(self) -> None:
        """What is launched now comes after it."""
        self.end(COPY_BEGINS)

    # --- updates -------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer's step begins, perhaps inside another's: torch calls this before any."""
        if id(optimizer) not in self._known:  # made before there was an observer
            self.knows(optimizer)
        if get_ident() != self.thread:
            if self._updated:
                return None
            # The loop is not where the script began.
            self.thread, self.native = get_ident(), threading.get_native_id()
            self._begun = True
            self.restart(moved=True)
        now = perf_counter_ns()
        self.take((UPDATE_BEGINS, now, None if self.device is None else self.mark_begin(now), None))
        if len(args) == 1 and not kwargs:
            return None
        # A closure (LBFGS's; Lightning's whole training step) is the loop's own code: what it does beside
        # forward and backward is `other`, as it is in a plain loop.
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._outside_update(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._outside_update(args[1]), *args[2:]), kwargs
        return None

    def after_step(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
        """An optimizer's step has ended."""
        if get_ident() != self.thread:
            return
        key: int | None = id(optimizer)
        if self._capturing is not None:
            self._graph_updates[id(self._capturing)] = id(optimizer)
            key = None
        now = perf_counter_ns()
        self.take((UPDATE_ENDS, now, None if self.device is None else self.mark(now), key))
        self._updated = True
        self._forward_seen = self._copied_beside = False
        if self.device is not None:
            self._set_gap(now)
        elif self._device_looks:
            self._device_looks -= 1

    def _set_gap(self, now: int) -> None:
        share = (now - self._updated_ns) // _GAP_SHARE
        self._gap_ns = min(max(share, _GAP_LEAST_NS), _GAP_MOST_NS)
        self.smallest_copy = self._gap_ns * _COPY_BYTES_PER_NS
        self._updated_ns = now

    def _outside_update(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(closure, updated=())
        def timed() -> Any:
            if get_ident() != self.thread:
                return closure()
            now = perf_counter_ns()
            self.take((CLOSURE_BEGINS, now, None if self.device is None else self.mark_begin(now), None))
            try:
                return closure()
            finally:
                self.end(CLOSURE_BEGINS)

        return timed

    def timed_replay(self, graph: Any, replay: Callable[[Any], None]) -> None:
        """A CUDA graph is replayed: a step of its own if an update was captured in it."""
        if get_ident() != self.thread:
            replay(graph)
            return
        if self.device is not None and not self.device.on_training_stream():
            self._follow(self.device)
        now = perf_counter_ns()
        self.take((GRAPH_BEGINS, now, None if self.device is None else self.mark_begin(now), None))
        try:
            replay(graph)
        finally:
            now = perf_counter_ns()
            event = None if self.device is None else self.mark(now)
            optimizer = self._graph_updates.get(id(graph))
            self.take((GRAPH_ENDS, now, event, optimizer))
            if optimizer is not None:
                self._set_gap(now)

    def capture(self, graph: Any) -> None:
        """A CUDA graph's capture begins (or, with None, ends)."""
        with self.asking:
            self._capturing = graph
        if self.device is not None:
            self.device.capturing = graph is not None
            self._last = None

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return self._capturing is not None

    def mark_step(self) -> None:
        """The loop itself says that a step has ended (loops without an optimizer)."""
        now = perf_counter_ns()
        self.take((STEP_MARKED, now, None if self.device is None else self.mark(now), None))
        self._updated = True

    def end_pause(self) -> None:
        """What came since the last step is nobody's time."""
        now = perf_counter_ns()
        self.take((PAUSE_ENDS, now, None if self.device is None else self.mark(now), None))

    # --- what is trained -------------------------------------------------------------------------------

    def knows(self, optimizer: Any) -> None:
        """An optimizer was made."""
        self._optimizers.add(optimizer)
        self._known.add(id(optimizer))
        self.take((OPTIMIZERS_KNOWN, perf_counter_ns(), None, len(self._optimizers)))
        if len(self._optimizers) <= _SEARCHES:
            self.find_roots()  # now, while the loop has not begun
        else:  # one for every parameter, say: a search takes some 50 ms
            self.look_again()

    def look_again(self) -> None:
        """A model was wrapped: the roots may have changed."""
        self._roots_stale = self.unsettled = True

    def find_roots(self) -> None:
        """Find the modules whose call is the forward pass."""
        self._roots_stale = self._descended = False
        trained = [p for o in self._optimizers for g in o.param_groups for p in g["params"]]
        if trained:  # else the optimizers are gone already, and what they trained is known
            self.gradient_bytes = gradient_bytes_of(trained)
        self.roots.find(trained)
        self.meetings.look_among(self.roots.modules())

    def restart(self, *, moved: bool = False) -> None:
        """What came before is nobody's: the loop begins now, perhaps on another thread."""
        now = perf_counter_ns()
        self.take((LOOP_BEGINS, now, None if self.device is None else self.mark(now), moved))

    def close(self) -> None:
        """Nobody reads any more: take no notes, whoever may still call."""
        self.take = _ignore
        self.aside, self.told = deque(maxlen=0), deque(maxlen=0)
        # The device stays: the training thread may be between asking for it and using it.
        self.thread, self._updated = 0, True

    def _settle(self) -> None:
        """What the first draw or forward has to do, and one after the model was wrapped."""
        self.unsettled = False
        if self._roots_stale:
            self.find_roots()
        if not self._begun:
            self._begun = True
            self.restart()

    def _look_deeper(self) -> None:
        """A backward without a forward: the roots were wrapped since, or are containers never called."""
        if self.roots.fixed or self._missed >= _SEARCHES:
            return
        self._missed += 1
        before = self.roots.modules()
        if not self._descended:
            self.find_roots()
        if before and self.roots.modules() == before:
            self._descended = True
            self.roots.descend()

    def _look_for_device(self, module: nn.Module) -> None:
        """A model stays where it is once it trains: the question is asked in the first steps alone."""
        parameter = next(module.parameters(), None)
        if parameter is not None and parameter.is_cuda and not self.capturing:
            self.use_device(Device(parameter.device.index))

    def use_device(self, device: Device) -> None:
        """Take the device's time too, from now on."""
        self._device_looks = 0
        self.device = device
        now = perf_counter_ns()
        self.take((DEVICE_FOUND, now, self.mark(now), device.index))


def _ignore(note: Note) -> None:
    pass
