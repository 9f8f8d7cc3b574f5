"""Rows in the host's memory, brought to a GPU over the bus; as many as fit may stay there.

The memory is registered with the driver: then the GPU reads it by its host address, and no CPU gathers.
Batches are gathered ahead, on a stream of their own, while the loop's step is at work:

- `ram`: one kernel gathers a batch. It costs the CPU nothing but its launch.
- `window`: the first rows have a copy in VRAM, and only the others cross the bus. Long ones are moved by the
  copy engines, which take nothing from the step beside them.

A gather is over when the GPU says so, not when the call returns: rows stay mapped and registered until then.
"""

import os
import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.errors import UsageError
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


class Queued(NamedTuple):
    """Batches on their way: their memory is the loop's stream's, and good from the event on.

    `resident` has, of a leaf that is brought in part, the rows from which the rest comes when they are taken.
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
        self._events: deque[torch.cuda.Event] = deque()
        self._taken = 0
        self._leash: tuple[torch.cuda.Event, ...] = ()
        self._current: tuple[Any, torch.cuda.Stream] = (None, self._side)
        self._end = weakref.finalize(self, _end, os.getpid(), self._side, self._registered)

    def prepare(self) -> str:
        """Register the memory, gather one row and look at it; what stood in the way, if anything did."""
        reason = self._registered.add(self.rows.memory)
        if reason:
            return reason
        if find_spec("triton") is None:
            return "triton is not installed"
        try:
            got = self._bring_leaves(np.zeros(1, np.int64))
        except (RuntimeError, OSError, SubprocessError) as error:  # no compiler, a full disk, a card too old
            return f"the kernel did not run ({error!r})"
        same = _first_row(got) == _first_row(self.rows.opened()[0])
        return "" if same else "the kernel read something else than is there"

    # --- the window ---------------------------------------------------------------------------------

    def keep(self, count: int) -> bool:
        """Copy the first rows to the device, to stay there; all of them must be held. False if none is long.

        Short ones are brought by the kernel: what a window would save them is little.
        """
        rows, _ = self.rows.opened()
        leaves = self.rows.layout.leaves
        long = [leaf.bytes >= copy_engine.LONG_ROW and copy_engine.is_available() for leaf in leaves]
        if not any(long):
            return False
        with self._lock, torch.cuda.stream(self._side):
            kept = [
                torch.empty_like(words[:count], device=self.device) if one else None
                for one, words in zip(long, rows, strict=True)
            ]
            for words, copy in zip(rows, kept, strict=True):
                if copy is not None:
                    copy.copy_(words[:count], non_blocking=True)
            self._side.synchronize()  # they are read on other streams too
            self._kept, self.resident = kept, count
            self._engines = [
                CopyEngine(leaf.bytes) if one else None for one, leaf in zip(long, leaves, strict=True)
            ]
        self.why = f"{count} of {len(self.rows)} samples stay in VRAM, copy engines bring the others ahead"
        return True

    def drop(self) -> None:
        """Give the device's memory back, as soon as what is on its way has been taken."""
        with self._lock:
            torch.cuda.synchronize(self.device)
            nothing = len(self._kept)
            self._kept, self._engines, self.resident = [None] * nothing, [None] * nothing, 0
            self.why = _BY_KERNEL

    # --- batches ------------------------------------------------------------------------------------

    def bring(self, places: list[Indices], few: int) -> list[Asked]:
        """Move the numbers of these batches to the device, all at once; a few of them will come together."""
        indices = bring(places, self.device)
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
            for engine, words, out in zip(self._engines, rows, leaves, strict=True):
                self._send(engine, words, asked, out)
            event.record(self._side)
            return Queued(asked, leaves, self._kept, current, event)

    def take(self, queued: Queued) -> list[Any]:
        """The batches, on the current stream from now on; they are the caller's own."""
        current = self._current_stream()
        with self._on_device():
            queued.arrived.wait(current)
            self._events.append(queued.arrived)
            if current is not queued.stream:
                for leaf in queued.leaves:
                    leaf.record_stream(current)
            for kept, out in zip(queued.resident, queued.leaves, strict=True):
                if kept is not None:  # in the loop's own stream, where it disturbs no kernel beside it
                    self._gather(kept, queued.asked, out, current)
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

    def _gather(self, rows: torch.Tensor, asked: Asked, out: torch.Tensor, stream: torch.cuda.Stream) -> None:
        from stoker.feed.tiers.bus_kernel import gather

        gather(rows, asked.indices, out, stream=stream.cuda_stream)

    def _bring_leaves(self, places: Indices) -> list[torch.Tensor]:
        queued = self.queue(self.bring([places], 1)[0])
        self.take(queued)
        return queued.leaves

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


def _first_row(tensors: list[torch.Tensor]) -> list[bytes]:
    return [tensor[:1].cpu().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


def _end(pid: int, side: torch.cuda.Stream, registered: Registered) -> None:
    """Nothing of this is a forked child's."""
    if os.getpid() == pid:
        side.synchronize()
        registered.end()
