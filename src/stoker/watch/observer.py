"""One run's observer: what the hooks tell of the training thread becomes parts, and parts steps.

The hooks call this on the training thread, so each method does little, and calls little: the same
hooks that take some 7 us in a loop of their own took about 45 us a step among real work (2 cores,
torch 2.13), which is put down to code that has left the caches. That is why what happens in every step
stands here in one piece, where a tidier hand would have made three. What is ready goes to `done` and
`told`, which the recorder's thread empties.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn

from stoker.watch.cycle import Cycle
from stoker.watch.loaders import Draw, Fate, Loader, Loaders, begin
from stoker.watch.part import Part, pack
from stoker.watch.phases import BACKWARD, COPY, DRAW, FORWARD, GRAPH, OTHER, UPDATE, WAIT
from stoker.watch.roots import Roots
from stoker.watch.timeline import Device, Event, Timeline
from stoker.watch.workers import Mailbox, Told

get_ident = threading.get_ident
_gradients = torch.is_grad_enabled
# How often the roots are looked for at once, and how deep.
_SEARCHES = 6
_COMPUTING = (FORWARD, BACKWARD)
_OPEN, _FED = Fate.OPEN, Fate.FED


class Copy(NamedTuple):
    """A copy under way: its phase, that phase's time before it, or its event on a side stream."""

    token: int
    before: int
    beside: Event | None


class Observer:
    """Watches one training thread of this process."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.timeline = Timeline()
        self.loaders = Loaders()
        self.mailbox = Mailbox()
        self.roots = Roots(self.timed_call)
        self.cycle: Cycle[Part] = Cycle()
        self.done: deque[list[Part]] = deque()
        self.told: deque[tuple[int, Told]] = deque()
        self.updates = 0
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._known: set[int] = set()
        self._draws: list[Draw] = []
        self._side_copies: list[tuple[Event, Event]] = []
        self._update_depth = 0
        self._update_token = 0
        self._forwards = 0
        self._missed = 0
        self._descended = False
        self._roots_stale = False
        self._capturing: Any = None
        self._graph_updates: dict[int, int | str] = {}
        self._begun = False
        self._may_have_device = torch.cuda.is_available()

    # --- draws -----------------------------------------------------------------------------------

    def here(self) -> bool:
        """Whether this is the thread that trains."""
        return get_ident() == self.thread

    def begin_draw(self, loader: Loader) -> tuple[Draw, int]:
        """The loop stands in `next()`."""
        here = get_ident() == self.thread
        if not here or not _gradients():
            return self.loaders.draw(loader, background=not here, evaluating=here), 0
        last = loader.last
        if last is not None and last.forward_seen and last.fate is _OPEN:
            self.loaders.settle_as_evaluated(last)
        draw = Draw()  # as `loaders.begin` does
        draw.loader, draw.startup, draw.background = loader, loader.startup, False
        draw.ns, draw.samples, draw.fate, draw.forward_seen = 0, None, _OPEN, False
        if self._roots_stale:
            self.find_roots()
        if not self._begun:
            self._begin()
        return draw, self.timeline.enter(DRAW)

    def end_draw(self, draw: Draw, token: int, samples: int | None) -> None:
        """`next()` gave a batch of so many samples."""
        self.loaders.drawn(draw, samples)
        if token:
            draw.ns = self.timeline.leave_draw(token)
            self._draws.append(draw)
        elif draw.background:
            self._draws.append(draw)

    def end_without_batch(self, draw: Draw, token: int) -> None:
        """An `iter()` ended; or `next()` raised, at the epoch's end or for an error."""
        if token:
            draw.ns = self.timeline.leave_draw(token)
            self._draws.append(draw)

    def begin_iter(self, loader: Loader) -> tuple[Draw, int]:
        """The loop stands in `iter()`: workers may be starting."""
        loader.startup = True
        loader.epochs += 1
        loader.drawn = 0
        draw = begin(loader, startup=True)
        if get_ident() != self.thread or not torch.is_grad_enabled():
            return draw, 0
        if not self._begun:
            self._begin()
        return draw, self.timeline.enter(DRAW)

    def blocked(self) -> int:
        """The training thread blocks on another thread; with a loader there, that is waiting for data."""
        if not self.loaders.in_background or get_ident() != self.thread:
            return 0
        if self.timeline.current != OTHER:
            return 0
        if not self._begun:
            self._begin()
        return self.timeline.enter(WAIT)

    def leave(self, token: int) -> None:
        """A phase ends."""
        if token:
            self.timeline.leave(token)

    # --- forward, backward, copies ----------------------------------------------------------------

    def timed_call(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root module is called."""
        if get_ident() != self.thread or self.timeline.current in _COMPUTING:
            return call(*args, **kwargs)
        if not _gradients():
            self.loaders.forward_without_gradients()
            return call(*args, **kwargs)
        loaders = self.loaders
        if loaders.answered is not None:
            loaders.forward()
        for draw in loaders.open:
            draw.forward_seen = True
        self._forwards += 1
        if not self._begun:
            self._begin()
        device = self.timeline.device
        if device is None:
            if self._may_have_device:
                self._look_for_device(module)
        elif not device.on_training_stream() and self._capturing is None:
            device.follow()
        token = self.timeline.enter(FORWARD)
        try:
            return call(*args, **kwargs)
        finally:
            self.timeline.leave(token)

    def begin_backward(self) -> int:
        """Gradients are asked for."""
        if get_ident() != self.thread or self.timeline.current == BACKWARD:
            return 0
        if not self._forwards:
            self._look_deeper()
        drawn = self.loaders.open
        for draw in drawn:
            draw.fate = _FED
            draw.loader.fed += 1
        drawn.clear()
        return self.timeline.enter(BACKWARD)

    def begin_copy(self) -> "Copy | None":
        """A tensor is about to leave the host. Beside the training stream it costs that stream nothing."""
        if get_ident() != self.thread:
            return None
        timeline = self.timeline
        if timeline.device is not None and not timeline.device.on_training_stream():
            return Copy(0, 0, timeline.device.mark_current())
        return Copy(timeline.enter(COPY), timeline.totals[COPY], None)

    def end_copy(self, copy: "Copy", copied: bool) -> None:
        """The call that might have copied has returned."""
        timeline = self.timeline
        if copy.beside is not None and timeline.device is not None:
            end = timeline.device.mark_current()
            if end is not None and copied:
                self._side_copies.append((copy.beside, end))
        if copy.token:
            timeline.leave(copy.token)
            if not copied:
                timeline.disown_last(COPY, copy.before)

    def begin_stream_wait(self, stream: Any) -> int:
        """The training stream waits for another one: for the copies there, if there were any."""
        device = self.timeline.device
        if device is None or not self._side_copies or get_ident() != self.thread:
            return 0
        return self.timeline.enter(COPY) if stream.cuda_stream == device.raw_stream else 0

    # --- updates -----------------------------------------------------------------------------------

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """torch calls this before any optimizer's step."""
        self.begin_update(optimizer)
        if len(args) == 1 and not kwargs:
            return None
        # A closure (LBFGS's; Lightning's whole training step) is the loop's own code: what it does beside
        # forward and backward is `other`, as it is in a plain loop.
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._outside_update(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._outside_update(args[1]), *args[2:]), kwargs
        return None

    def begin_update(self, optimizer: Any) -> None:
        """An optimizer's step begins, perhaps inside another's."""
        if id(optimizer) not in self._known:  # made before there was an observer
            self.knows(optimizer)
        if get_ident() != self.thread:
            if self.updates:
                return
            self._move_to_this_thread()
        if self._update_depth == 0 or self._update_token > self.timeline.depth:
            self._update_depth = 0
            self._update_token = self.timeline.enter(UPDATE)
        self._update_depth += 1

    def after_step(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
        """An optimizer's step has ended; the outermost one's end is where the part ends."""
        if get_ident() != self.thread or self._update_depth == 0:
            return
        self._update_depth -= 1
        if self._update_depth:
            return
        self.timeline.leave(self._update_token)
        if self._capturing is not None:
            self._graph_updates[id(self._capturing)] = id(optimizer)
        else:
            self._cut(id(optimizer))

    def _outside_update(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(closure, updated=())
        def timed() -> Any:
            token = self.timeline.enter(OTHER) if get_ident() == self.thread else 0
            try:
                return closure()
            finally:
                self.leave(token)

        return timed

    def replay(self, graph: Any, call: Callable[[], None]) -> None:
        """A CUDA graph is replayed: a step of its own if an update was captured in it."""
        if get_ident() != self.thread or self.timeline.current != OTHER:
            call()
            return
        device = self.timeline.device
        if device is not None and not device.on_training_stream():
            device.follow()
        token = self.timeline.enter(GRAPH)
        try:
            call()
        finally:
            self.timeline.leave(token)
        optimizer = self._graph_updates.get(id(graph))
        if optimizer is not None:
            self.loaders.backward()
            self._forwards += 1
            self._cut(optimizer)

    def capture(self, graph: Any) -> None:
        """A CUDA graph's capture begins (or, with None, ends)."""
        self._capturing = graph
        if self.timeline.device is not None:
            self.timeline.device.capturing = graph is not None

    def mark_step(self) -> None:
        """The loop itself says that a step has ended (loops without an optimizer)."""
        self.timeline.leave(self.timeline.enter(OTHER))
        self.loaders.backward()
        self._cut("marked")

    def finish(self) -> None:
        """No more steps will come."""
        self.done.extend(self.cycle.flush())

    # --- what is trained ----------------------------------------------------------------------------

    def knows(self, optimizer: Any) -> None:
        """An optimizer was made."""
        self._optimizers.add(optimizer)
        self._known.add(id(optimizer))
        self.cycle.expect(len(self._optimizers))
        if len(self._optimizers) <= _SEARCHES:
            self.find_roots()  # now, while the loop has not begun
        else:  # one for every parameter, say: a search takes some 50 ms
            self._roots_stale = True

    def look_again(self) -> None:
        """A model was wrapped: the roots may have changed."""
        self._roots_stale = True

    def find_roots(self) -> None:
        """Find the modules whose call is the forward pass."""
        self._roots_stale = self._descended = False
        self.roots.find(p for o in self._optimizers for g in o.param_groups for p in g["params"])

    def _cut(self, optimizer: int | str) -> None:
        totals, marks, start = self.timeline.cut()
        part = pack(time.time(), totals, self._draws, start, marks, self._side_copies)
        self._draws = []
        if self._side_copies:
            self._side_copies = []
        self._forwards = 0
        self.updates += 1
        done = self.cycle.add(optimizer, part)
        if done:
            self.done.extend(done)

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
        """A model stays where it is once it trains: the question is asked of the first steps alone."""
        parameter = next(module.parameters(), None)
        if parameter is not None and parameter.is_cuda:
            self.timeline.device = Device(parameter.device.index)
            self.timeline.last_event = self.timeline.device.mark()
        self._may_have_device = self.updates < _SEARCHES

    def _begin(self) -> None:
        """The first batch is asked for, or the first forward runs: what came before was set-up."""
        self._begun = True
        self.timeline.restart()

    def _move_to_this_thread(self) -> None:
        self.thread = get_ident()
        self.timeline = Timeline(device=self.timeline.device)
        self._update_depth = 0
