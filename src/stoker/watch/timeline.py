"""The training thread's time, cut into phases: marks on the host's clock and on the device's.

A mark is set where the training thread goes from one phase to another. On a GPU each mark also
records a CUDA event on the training stream. An event's time is the later of "the host got here" and
"the device got here", so the time between two events is what the phase cost the device: if the
device is still busy while the host stands in `next()`, both events pass at once and the wait is
nothing; if it has run dry, exactly the idle part is left. Nothing is read back here, nor summed:
the training thread appends to a list, and the recorder's thread does the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from stoker.watch.phases import OTHER

if TYPE_CHECKING:
    from stoker.watch.loaders import Draw

# One operation takes Python and the dispatcher longer than this, so a gap below it launched nothing and
# the event before it serves for both of its ends. An event costs 2.8 us to record (H200, torch 2.11).
_TOO_SHORT_TO_LAUNCH_NS = 4_000

# A phase's number, or the draw from a loader that the time was spent on: whether that is `wait`
# is known only once the batch has reached a step or not.
Bucket: TypeAlias = "int | Draw"


class Event(Protocol):
    """What a device's timeline is made of (torch.cuda.Event)."""

    def record(self, stream: Any = None) -> None:
        """Mark this point of the stream."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


@dataclass(slots=True)
class Mark:
    """The end of a stretch: whose it was, when it ended, and the event there if there is a device."""

    bucket: Bucket
    ns: int
    event: Event | None


@dataclass(slots=True)
class Part:
    """What lay between two updates: marks in order, the draws made, copies on side streams."""

    start: Mark
    marks: list[Mark]
    draws: "list[Draw]"
    side_copies: list[tuple[Event, Event]]
    unix: float
    forwards: int
    device_index: int | None = None


class Device:
    """Records events on the training stream, reusing those that have been read."""

    def __init__(self, index: int) -> None:
        import torch

        self._torch = torch
        self.index = index
        self.stream = torch.cuda.current_stream(index)
        self.raw_stream = self.stream.cuda_stream
        self._pool: list[Event] = []
        # The subclass's `record` only looks the stream up; 0.3 us less without it.
        self._record: Any = torch._C._CudaEventBase.record
        self.capturing = False
        self._raw_current = torch._C._cuda_getCurrentRawStream

    def mark(self) -> Event | None:
        """An event on the training stream now; None during a graph's capture, which it would spoil."""
        if self.capturing:
            return None
        event = self._new()
        self._record(event, self.stream)
        return event

    def mark_current(self) -> Event | None:
        """An event on whatever stream is current: for work that goes on beside the training stream."""
        if self.capturing:
            return None
        event = self._new()
        event.record(self._torch.cuda.current_stream(self.index))
        return event

    def on_training_stream(self) -> bool:
        """Whether what is launched now joins the training stream."""
        return bool(self._raw_current(self.index) == self.raw_stream)

    def follow(self) -> None:
        """The model runs on another stream than before: the timeline moves there."""
        self.stream = self._torch.cuda.current_stream(self.index)
        self.raw_stream = self.stream.cuda_stream

    def give_back(self, events: Sequence[Event]) -> None:
        """Events that have been read may be recorded again."""
        self._pool.extend(events)

    def _new(self) -> Event:
        try:
            return self._pool.pop()
        except IndexError:
            return self._torch.cuda.Event(enable_timing=True)


@dataclass(slots=True)
class Timeline:
    """Exclusive time of the training thread: `enter` a phase, `leave` it, `cut` at an update's end.

    `enter` answers a depth for `leave`, so that a phase that never ended (an exception on its way
    through an optimizer) cannot swallow what comes after it.
    """

    device: Device | None = None
    current: Bucket = OTHER
    cost_ns: int = 0
    marks_made: int = 0
    _stack: list[Bucket] = field(default_factory=list)
    _marks: list[Mark] = field(default_factory=list)
    _start: Mark = field(default_factory=lambda: Mark(OTHER, perf_counter_ns(), None))

    @property
    def depth(self) -> int:
        """How many phases are open."""
        return len(self._stack)

    def enter(self, bucket: Bucket) -> int:
        """Begin a phase inside whatever runs now."""
        now = perf_counter_ns()
        event = None
        if self.device is not None:
            last = self._marks[-1] if self._marks else self._start
            event = last.event if now - last.ns < _TOO_SHORT_TO_LAUNCH_NS else self.device.mark()
        self._marks.append(Mark(self.current, now, event))
        self._stack.append(self.current)
        self.current = bucket
        self.cost_ns += perf_counter_ns() - now
        return len(self._stack)

    def leave(self, depth: int) -> None:
        """End the phase that `enter` answered `depth` for, and any left open inside it."""
        stack = self._stack
        if depth > len(stack):
            return
        now = perf_counter_ns()
        device = self.device
        self._marks.append(Mark(self.current, now, None if device is None else device.mark()))
        self.current = stack[depth - 1]
        del stack[depth - 1 :]
        self.cost_ns += perf_counter_ns() - now

    def disown_last(self) -> None:
        """The phase that just ended was not what it seemed: its time belongs to what runs now."""
        self._marks[-1].bucket = self.current

    def cut(self) -> tuple[Mark, list[Mark]]:
        """Everything since the last cut: where it began, and its marks."""
        marks, self._marks = self._marks, []
        start = self._start
        self._start = marks[-1] if marks else start
        self.marks_made += len(marks)
        return start, marks
