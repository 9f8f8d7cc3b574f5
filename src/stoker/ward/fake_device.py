"""A device that is not there: one stream that runs what is launched on it, in order, behind the host.

For what cannot be had without a GPU: whether device time is booked on the phase that launched it. An
event on it passes when both the host has recorded it and everything launched before it has ended,
which is what a CUDA event does.
"""

import time


class FakeEvent:
    """A point on the fake stream."""

    def __init__(self) -> None:
        self.at = 0.0

    def query(self) -> bool:
        """Whether the device has passed it."""
        return time.perf_counter() >= self.at

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        """Milliseconds from this event to another."""
        return (end_event.at - self.at) * 1e3


class FakeDevice:
    """Stands where `stoker.watch.device.Device` stands. `launch` keeps it busy without waiting for it."""

    def __init__(self) -> None:
        self.index = 0
        self.name = "a device that is not there"
        self.stream = self.raw_stream = 0
        self.capturing = False
        self.beside = False
        self.recorded = 0
        self._free_at = 0.0

    def launch(self, seconds: float) -> None:
        """Work for the device, after what it has already."""
        self._free_at = max(self._free_at, time.perf_counter()) + seconds

    def synchronize(self) -> None:
        """Wait until the device has caught up."""
        time.sleep(max(0.0, self._free_at - time.perf_counter()))

    def idle(self) -> bool:
        """Whether it has done all that was launched. As with CUDA, not to be asked during a capture."""
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return time.perf_counter() >= self._free_at

    def make(self) -> FakeEvent:
        """An event, not recorded yet."""
        return FakeEvent()

    def record(self, event: FakeEvent, stream: object) -> None:
        """The event passes when the device gets here."""
        self.recorded += 1
        event.at = max(self._free_at, time.perf_counter())

    def mark_current(self) -> FakeEvent | None:
        """An event beside the stream, where nothing else runs."""
        if self.capturing:
            return None
        event = FakeEvent()
        event.at = time.perf_counter()
        return event

    def on_training_stream(self) -> bool:
        """Whether what is launched now joins the stream."""
        return not self.beside

    def follow(self) -> None:
        """There is one stream only; what was beside it is where training runs now."""
        self.beside = False
