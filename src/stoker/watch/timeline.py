"""The training thread's time, cut into phases: on the host's clock, and on the device's where there is one.

The thread is always in one phase. `enter` begins another inside it, `leave` goes back, and each adds
the time since the last of them to the phase that ends. On a GPU each also records a CUDA event on the
training stream. An event's time is the later of "the host got here" and "the device got here", so
the time between two events is what the phase cost the device: if the device is still busy while the
host stands in `next()`, both events pass at once and the wait is nothing; if it has run dry, exactly
the idle part is left. No event is read here: the recorder does that, later, without a sync.
"""

from time import perf_counter_ns
from typing import Any, Protocol

from stoker.watch.phases import DRAW, DRAWN, OTHER

# Below this a gap is taken to have launched nothing, and the event before it serves for both of its ends;
# a kernel launched within it would be booked on the phase that follows. An event costs 2.8 us to record
# (H200, torch 2.11).
_TOO_SHORT_TO_LAUNCH_NS = 4_000


class Event(Protocol):
    """What a device's timeline is made of (torch.cuda.Event)."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


class Device:
    """Records events on the training stream, each event once.

    Events that had been read used to be recorded again. Beside a side stream one was then seen to be read
    with the time of its next use (a step's `other` came out at minus one step, H200, torch 2.11), by a
    cause not found. A new event has no next use; what making one costs has not been measured.
    """

    def __init__(self, index: int) -> None:
        import torch

        self._torch = torch
        self.index = index
        self.stream = torch.cuda.current_stream(index)
        self.raw_stream = self.stream.cuda_stream
        # The subclass's `record` only looks the stream up when none is given.
        self.record: Any = torch._C._CudaEventBase.record
        self.capturing = False
        self._raw_current = torch._C._cuda_getCurrentRawStream

    def mark(self) -> Event | None:
        """An event on the training stream now; None during a graph's capture, which it would spoil."""
        if self.capturing:
            return None
        event = self.new_event()
        self.record(event, self.stream)
        return event

    def mark_current(self) -> Event | None:
        """An event on whatever stream is current: for work that goes on beside the training stream."""
        if self.capturing:
            return None
        event = self.new_event()
        self.record(event, self._torch.cuda.current_stream(self.index))
        return event

    def on_training_stream(self) -> bool:
        """Whether what is launched now joins the training stream."""
        return bool(self._raw_current(self.index) == self.raw_stream)

    def follow(self) -> None:
        """The model runs on another stream than before: the timeline moves there."""
        self.stream = self._torch.cuda.current_stream(self.index)
        self.raw_stream = self.stream.cuda_stream

    def new_event(self) -> Event:
        """An event that times."""
        return self._torch.cuda.Event(enable_timing=True)


class Timeline:
    """Exclusive time of the training thread by phase, in nanoseconds, since the last `cut`.

    `enter` answers a depth for `leave`, so that a phase that never ended (an exception on its way
    through an optimizer) cannot swallow what comes after it. `marks` holds, flat, the phase that ended
    and the event there; it stays empty without a device.
    """

    __slots__ = ("_stack", "cost_ns", "current", "device", "last_event", "marks", "since", "totals")

    def __init__(self, device: Device | None = None) -> None:
        self.device = device
        self.current = OTHER
        self.since = perf_counter_ns()
        self.totals = [0] * (DRAW + 1)
        self.marks: list[Any] = []
        self.last_event: Event | None = None
        self.cost_ns = 0
        self._stack: list[int] = []

    @property
    def depth(self) -> int:
        """How many phases are open."""
        return len(self._stack)

    def enter(self, phase: int) -> int:
        """Begin a phase inside whatever runs now."""
        now = perf_counter_ns()
        spent = now - self.since
        self.totals[self.current] += spent
        self.since = now
        if self.device is not None:
            # Most gaps between phases are too short to have launched anything.
            self._mark(self.current, reuse=spent < _TOO_SHORT_TO_LAUNCH_NS)
        self._stack.append(self.current)
        self.current = phase
        self.cost_ns += perf_counter_ns() - now
        return len(self._stack)

    def leave(self, depth: int) -> None:
        """End the phase that `enter` answered `depth` for, and any left open inside it."""
        stack = self._stack
        if depth > len(stack):
            return
        now = perf_counter_ns()
        self.totals[self.current] += now - self.since
        self.since = now
        if self.device is not None:
            self._mark(self.current, reuse=False)
        self.current = stack[depth - 1]
        del stack[depth - 1 :]
        self.cost_ns += perf_counter_ns() - now

    def leave_draw(self, depth: int) -> int:
        """End a draw; the nanoseconds that it took by itself."""
        stack = self._stack
        if depth > len(stack):
            return 0
        now = perf_counter_ns()
        totals = self.totals
        totals[self.current] += now - self.since
        self.since = now
        if self.device is not None:
            self._mark(DRAWN, reuse=False)
        self.current = stack[depth - 1]
        del stack[depth - 1 :]
        spent, totals[DRAW] = totals[DRAW], 0
        self.cost_ns += perf_counter_ns() - now
        return spent

    def disown_last(self, phase: int, spent_before: int) -> None:
        """The phase that just ended was not what it seemed: its time belongs to what runs now."""
        self.totals[self.current] += self.totals[phase] - spent_before
        self.totals[phase] = spent_before
        if self.marks:
            self.marks[-2] = self.current

    def restart(self) -> None:
        """What was before is nobody's: the next stretch starts now."""
        self.since = perf_counter_ns()
        self.cut()
        if self.device is not None:
            self.last_event = self.device.mark()

    def cut(self) -> tuple[list[int], list[Any], Event | None]:
        """Everything since the last cut: nanoseconds by phase, marks, and the event where they begin."""
        totals, self.totals = self.totals, [0] * (DRAW + 1)
        marks, self.marks = self.marks, []
        start = self.last_event
        if marks:
            self.last_event = marks[-1]
        return totals, marks, start

    def _mark(self, phase: int, *, reuse: bool) -> None:
        """The phase that ends, and an event there: `Device.mark` in place, for every step's sake."""
        device = self.device
        assert device is not None
        marks = self.marks
        event = (marks[-1] if marks else self.last_event) if reuse else None
        if event is None and not device.capturing:
            event = device.new_event()
            device.record(event, device.stream)
        marks.append(phase)
        marks.append(event)
