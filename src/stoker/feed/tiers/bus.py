"""Rows in the host's memory, brought to a GPU over the bus; as many as fit may stay there.

The memory is registered with the driver: then the GPU reads it by its host address, and no CPU gathers.
Batches are gathered ahead, on a stream of their own, while the loop's step is at work:

- `ram`: one kernel gathers a batch. It costs the CPU nothing but its launch.
- `window`: the first rows have a copy in VRAM, and only the others cross the bus. Long ones are moved by the
  copy engines, which take nothing from the step beside them.

A gather is over when the GPU says so, not when the call returns: rows stay mapped and registered until then.
"""

import mmap
import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.errors import StokerError, UsageError
from stoker.feed.sources.base import Indices
from stoker.feed.tiers import copy_engine
from stoker.feed.tiers.copy_engine import CopyEngine
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.tiers.registered import Registered
from stoker.feed.tiers.rows import as_leaf, bring
from stoker.feed.tiers.staged_bus import StagedBus

# The host is at most twice so many steps ahead of the device. It sleeps where it would be further (86 us of
# CPU a time, H200's host): the device's own queue is longer, and to wait for a place in that takes a core.
_LEASH = 16


def open_bus(rows: SharedRows, device: torch.device) -> "Bus | StagedBus":
    """The fastest way from these rows to the device that works here. Close it before them."""
    bus = Bus(rows, device)
    reason = bus.prepare()
    if not reason:
        return bus
    bus.close()
    return StagedBus(rows, device, reason)


class Asked(NamedTuple):
    """Some batches by the numbers of their samples, here and on the device; and how many each has."""

    places: Indices
    indices: torch.Tensor
    sizes: list[int]


@dataclass(kw_only=True, slots=True, eq=False)
class Queued:
    """Batches on their way: their memory is the loop's stream's, and good from the event on.

    `resident` has, of a leaf that is brought in part, the rows from which the rest is still to come.
    """

    asked: Asked
    leaves: list[torch.Tensor]
    resident: list[torch.Tensor | None]
    stream: torch.cuda.Stream
    arrived: torch.cuda.Event


class Bus:
    """Hands out batches of rows on a CUDA device, read by the device itself. `why` says how.

    `bring` the numbers of some batches; `queue` some of them at a time, while those before are in use; `take`
    them in turn: what was queued must be taken, though nobody may want it any more.

    Their memory comes from the stream that trains, and what brings it waits for what that stream had to
    do by then. So a batch that is let go of is the next one's memory, however far the host is ahead.
    """

    def __init__(self, rows: SharedRows, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.why = _BY_KERNEL
        self._lock = threading.Lock()
        self._registered = Registered(device)
        self._side = torch.cuda.Stream(device)
        # Of each leaf that is brought in part: who brings it, and the rows that are there.
        self._engines: list[CopyEngine | None] = [None] * len(rows.layout.leaves)
        self._kept: list[torch.Tensor | None] = [None] * len(rows.layout.leaves)
        self.resident = 0
        self._on_the_way: list[Queued] = []
        self._events: deque[torch.cuda.Event] = deque()
        self._taken = 0
        self._leash: tuple[torch.cuda.Event, ...] = ()
        self._current: tuple[Any, torch.cuda.Stream] = (None, self._side)
        self._end = weakref.finalize(self, _end, self._side, self._registered)

    def prepare(self) -> str:
        """Register the memory, gather one row and look at it; what stood in the way, if anything did."""
        reason = self._registered.add(self.rows.memory)
        if reason:
            return reason
        if find_spec("triton") is None:
            return "triton is not installed"
        try:
            return "" if self._reads_right() else "the kernel read something else than is there"
        except (RuntimeError, OSError, SubprocessError) as error:  # no compiler, a full disk, a card too old
            return f"the kernel did not run ({error!r})"

    # --- the window ---------------------------------------------------------------------------------

    def keep(self, count: int) -> bool:
        """Copy the first rows to the device, to stay there; all of them must be held. False if they cannot.

        Short ones are brought by the kernel: what a window would save them is little.
        """
        rows, _ = self.rows.opened()
        leaves = self.rows.layout.leaves
        long = [leaf.bytes >= copy_engine.LONG_ROW and copy_engine.is_available() for leaf in leaves]
        if not any(long) or not count:
            return False
        with self._lock, torch.cuda.stream(self._side):
            kept = [
                torch.empty_like(words[:count], device=self.device) if one else None
                for one, words in zip(long, rows, strict=True)
            ]
            engines = [
                CopyEngine(leaf.bytes) if one else None for one, leaf in zip(long, leaves, strict=True)
            ]
            for words, copy, engine in zip(rows, kept, engines, strict=True):
                if copy is not None and engine is not None:
                    copy.copy_(words[:count], non_blocking=True)
                    if not self._copies_right(engine, words):
                        return False
            self._side.synchronize()  # they are read on other streams too
            self._kept, self._engines, self.resident = kept, engines, count
        self.why = f"{count} of {len(self.rows)} samples stay in VRAM, copy engines bring the others ahead"
        return True

    @property
    def resident_bytes(self) -> int:
        """What the rows that stay on the device have of it now."""
        return sum(words.nbytes for words in self._kept if words is not None)

    def drop(self) -> None:
        """Give the device's memory back."""
        with self._lock, self._on_device():
            for queued in self._on_the_way:
                self._add_resident(queued, self._side)
                queued.arrived.record(self._side)
            torch.cuda.synchronize(self.device)
            nothing = len(self._kept)
            self._kept, self._engines, self.resident = [None] * nothing, [None] * nothing, 0
            self.why = _BY_KERNEL

    # --- batches ------------------------------------------------------------------------------------

    def bring(self, places: list[Indices], few: int) -> list[Asked]:
        """Move the numbers of these batches to the device, all at once; a few of them will come together."""
        indices = bring(places, self.device)
        event = torch.cuda.Event()
        event.record(self._current_stream())
        event.wait(self._side)  # by whichever stream it will be asked
        asked, begin = [], 0
        for at in range(0, len(places), few):
            some = places[at : at + few]
            together = some[0] if len(some) == 1 else np.concatenate(some)
            end = begin + len(together)
            asked.append(Asked(together, indices[begin:end], [len(batch) for batch in some]))
            begin = end
        return asked

    def queue(self, asked: Asked) -> Queued:
        """Begin to bring these batches, beside what the current stream does."""
        rows, _ = self.rows.opened()
        current = self._current_stream()
        with self._lock, self._on_device():
            if not self._end.alive:
                raise UsageError("this bus was closed: make another to go on")
            shapes = ((len(asked.places), words.shape[1]) for words in rows)
            leaves = [
                torch.empty(shape, dtype=words.dtype, device=self.device)
                for shape, words in zip(shapes, rows, strict=True)
            ]
            event = self._events.popleft() if self._events else torch.cuda.Event()
            event.record(current)
            event.wait(self._side)  # until then, others may be at work in this memory
            try:
                for engine, words, out in zip(self._engines, rows, leaves, strict=True):
                    self._send(engine, words, asked, out)
            except BaseException:
                self._side.synchronize()  # before the memory of the others is anybody else's
                raise
            event.record(self._side)
            queued = Queued(asked=asked, leaves=leaves, resident=self._kept, stream=current, arrived=event)
            self._on_the_way.append(queued)
            return queued

    def take(self, queued: Queued) -> list[Any]:
        """The batches, on the current stream from now on; they are the caller's own."""
        current = self._current_stream()
        with self._lock, self._on_device():
            self._on_the_way.remove(queued)
            queued.arrived.wait(current)
            self._events.append(queued.arrived)
            if current is not queued.stream:
                for tensor in (*queued.leaves, queued.asked.indices):
                    tensor.record_stream(current)
            # In the loop's own stream, where it disturbs no kernel beside it.
            self._add_resident(queued, current)
        self._hold_back(current, len(queued.asked.sizes))
        leaves = zip(queued.leaves, self.rows.layout.leaves, strict=True)
        return self.rows.layout.split([as_leaf(words, leaf) for words, leaf in leaves], queued.asked.sizes)

    def get(self, places: Indices) -> Any:
        """The batch of these samples, on the current stream."""
        return self.take(self.queue(self.bring([places], 1)[0]))[0]

    def close(self) -> None:
        """Wait for what is on its way, and let go of the memory."""
        with self._lock:
            self._end()

    def _send(self, engine: CopyEngine | None, words: torch.Tensor, asked: Asked, out: torch.Tensor) -> None:
        """Have a leaf brought on the side: all of it, or what is not on the device."""
        if engine is None:
            self._gather(words, asked, out, self._side)
            return
        away = np.flatnonzero(asked.places >= self.resident)
        size = words.shape[1] * words.itemsize
        origins, targets = asked.places[away] * size + words.data_ptr(), away * size + out.data_ptr()
        engine.copy(origins, targets, self._side.cuda_stream)

    def _add_resident(self, queued: Queued, stream: torch.cuda.Stream) -> None:
        for kept, out in zip(queued.resident, queued.leaves, strict=True):
            if kept is not None:
                self._gather(kept, queued.asked, out, stream)
        queued.resident = [None] * len(queued.leaves)  # which it holds no longer

    def _gather(self, rows: torch.Tensor, asked: Asked, out: torch.Tensor, stream: torch.cuda.Stream) -> None:
        from stoker.feed.tiers.bus_kernel import gather

        gather(rows, asked.indices, out, stream=stream.cuda_stream)

    def _reads_right(self) -> bool:
        """Whether a row of noise comes as it is, by the kernel that will bring the first leaf."""
        words = self.rows.opened()[0][0]
        noise = np.frombuffer(mmap.mmap(-1, max(1, words.shape[1] * words.itemsize)), np.uint8)
        noise[:] = np.random.default_rng().integers(0, 256, len(noise), dtype=np.uint8)
        if self._registered.add(noise):
            return False
        bytes_ = torch.from_numpy(noise)[: words.shape[1] * words.itemsize]
        row = bytes_.view(words.dtype).view(1, words.shape[1])
        asked = self.bring([np.zeros(1, np.int64)], 1)[0]
        with self._on_device():
            out = torch.empty_like(row, device=self.device)
            self._side.wait_stream(torch.cuda.current_stream(self.device))
            self._gather(row, asked, out, self._side)
            self._side.synchronize()
        return torch.equal(out.cpu(), row)

    def _copies_right(self, engine: CopyEngine, words: torch.Tensor) -> bool:
        """Whether the first row comes as it is, by an engine."""
        out = torch.empty_like(words[:1], device=self.device)
        try:
            engine.copy(np.array([words.data_ptr()]), np.array([out.data_ptr()]), self._side.cuda_stream)
        except StokerError:  # a driver that has such copies, but not of this memory
            return False
        self._side.synchronize()
        return torch.equal(out.cpu(), words[:1])

    def _hold_back(self, current: torch.cuda.Stream, batches: int) -> None:
        """Let the device come near, sleeping, if the host is too far ahead of it."""
        self._taken += batches
        if self._taken < _LEASH:
            return
        self._taken = 0
        if not self._leash:
            self._leash = (torch.cuda.Event(blocking=True), torch.cuda.Event(blocking=True))
        newer, older = self._leash
        older.record(current)
        newer.synchronize()  # recorded the last time
        self._leash = (older, newer)

    def _on_device(self) -> AbstractContextManager[Any]:
        """Kernels are launched on the current device, which is this one unless the loop has several."""
        here = torch._C._cuda_getDevice() == self._side.device_index
        return nullcontext() if here else torch.cuda.device(self.device)

    def _current_stream(self) -> torch.cuda.Stream:
        """Torch's own question takes 7 us (H200's host): most steps are on the same stream as the last."""
        told = torch._C._cuda_getCurrentStream(self._side.device_index)
        if told != self._current[0]:
            self._current = (told, torch.cuda.current_stream(self.device))
        return self._current[1]


_BY_KERNEL = "gathered by the GPU over the bus"


def _end(side: torch.cuda.Stream, registered: Registered) -> None:
    """Nothing of this is a forked child's."""
    if registered.ours:
        side.synchronize()
        registered.end()
