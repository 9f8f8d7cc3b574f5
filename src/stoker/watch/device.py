"""Events on the device's training stream: how the device's time is told without waiting for it.

An event's time is the later of "the host got here" and "the device got here", so the time between two
events is what the phase between them cost the device: if the device is still busy while the host stands in
`next()`, both events pass at once and the wait is nothing; if it has run dry, exactly the idle part is
left. No event is read on the training thread: the recorder does that, later, without a sync.

Where the device has nothing to do, an event would pass as soon as it is recorded: the host's clock tells the
same, and asking costs a fraction of recording (`Device.idle`). `clock.py` puts such marks among the events.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch


class Event(Protocol):
    """What a device's timeline is made of (torch.cuda.Event)."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


class Device:
    """Makes events and records them, each once: `record(make(), stream)`.

    Events that had been read used to be recorded again, and then one was seen to be read with the time of its
    next use (a step's `other` came out at minus one step; H200, torch 2.11). A new one costs 1.3 us more.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = torch.cuda.get_device_name(index)
        self.capturing = False
        # Made and recorded without the Python class above it, which costs 1 to 2 us more (H200, torch 2.11).
        self.make: Any = partial(torch._C._CudaEventBase, enable_timing=True)
        self.record: Any = torch._C._CudaEventBase.record
        self._raw_current = torch._C._cuda_getCurrentRawStream
        self.follow()

    def mark_current(self) -> Event | None:
        """An event on whatever stream is current: for work that goes on beside the training stream."""
        if self.capturing:
            return None
        event = self.make()
        self.record(event, torch.cuda.current_stream(self.index))
        return event  # type: ignore[no-any-return]

    def on_training_stream(self) -> bool:
        """Whether what is launched now joins the training stream."""
        return bool(self._raw_current(self.index) == self.raw_stream)

    def follow(self) -> None:
        """The model runs on this stream now: the timeline is there."""
        self.stream = torch.cuda.current_stream(self.index)
        self.raw_stream = self.stream.cuda_stream
        # Whether all that was launched on it has ended (cudaStreamQuery, which never waits). Not to be asked
        # while a graph is captured, which it would spoil.
        self.idle: Callable[[], bool] = partial(torch._C._CudaStreamBase.query, self.stream)

    def synchronize(self) -> None:
        """Wait until the device has passed everything on the training stream."""
        self.stream.synchronize()


class EventLog:
    """The events recorded so far whose times are not known yet, numbered as they come.

    Marks lie on the training stream; pairs enclose copies on other streams. The training thread adds, the
    recorder's takes: each time that is taken out is followed by that of the next number.
    """

    def __init__(self) -> None:
        self.marks: deque[Event] = deque()
        self.pairs: deque[tuple[Event, Event]] = deque()
        self.marked = self.paired = 0
        self._passed: Event | None = None

    def mark(self, event: Event) -> int:
        """Number an event on the training stream."""
        number = self.marked
        self.marks.append(event)
        self.marked = number + 1
        return number

    def pair(self, before: Event, after: Event) -> int:
        """Number two events around a copy on another stream."""
        number = self.paired
        self.pairs.append((before, after))
        self.paired = number + 1
        return number

    def forget(self) -> None:
        """The device has failed: none of them will be told."""
        self.marks.clear()
        self.pairs.clear()

    def take_marks(self, most: int) -> list[float]:
        """Milliseconds from one mark to the next, for so many that the device has passed since the last call.

        The very first mark is where the device's clock begins: 0.
        """
        marks = self.marks
        taken: list[float] = []
        while marks and len(taken) < most and marks[0].query():
            event = marks.popleft()
            taken.append(0.0 if self._passed is None else self._passed.elapsed_time(event))
            self._passed = event
        return taken

    def take_pairs(self) -> list[float]:
        """Milliseconds that each pair encloses, for those that have passed since the last call."""
        taken = []
        while self.pairs and self.pairs[0][1].query():
            before, after = self.pairs.popleft()
            taken.append(before.elapsed_time(after))
        return taken
