"""Rows brought to a GPU where it cannot read them itself: the CPU gathers, the copy engine moves.

By a small registered buffer, so that the CPU gathers the next batch while the last is on its way; as it
stands where not even that can be registered.
"""

import mmap
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

from stoker.errors import UsageError
from stoker.feed.layout import Layout
from stoker.feed.sources.base import Indices
from stoker.feed.streams import Streams
from stoker.feed.tiers.pack import Bytes
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.tiers.registered import Registered
from stoker.feed.tiers.rows import as_leaf, fresh

# Batches that may be on their way while the CPU gathers the next.
_BUFFERS = 3


class StagedBus:
    """Hands out batches of rows on a CUDA device. `why` says how, and why not better."""

    def __init__(self, rows: SharedRows, device: torch.device, reason: str) -> None:
        self.rows, self.device = rows, device
        self.why = f"gathered by the CPU, then copied: {reason}"
        self._lock = threading.Lock()
        self._ring: deque[_Buffer] = deque()
        self._registered = Registered(device)
        self._by_buffer = True
        self._streams = Streams(device)
        self._end = weakref.finalize(self, _end, self._ring, self._registered)

    def bring(self, places: list[Indices], few: int) -> list[Indices]:
        """As they are: the CPU gathers, one batch at a time."""
        return places

    def queue(self, places: Indices) -> tuple[Any, Any]:
        """The batch of these samples, on its way on the current stream; and which that is."""
        leaves = self.rows.layout.leaves
        with self._lock, torch.cuda.device(self.device):
            if not self._end.alive:
                raise UsageError("this bus was closed: make another to go on")
            buffer = self._next_buffer(len(places)) if self._by_buffer else None
            host = [fresh(leaf, len(places)) for leaf in leaves] if buffer is None else buffer.of(len(places))
            self.rows.gather(torch.from_numpy(places), host)
            if buffer is None:
                batch = [tensor.to(self.device) for tensor in host]
            else:
                batch = [tensor.to(self.device, non_blocking=True) for tensor in host]
                buffer.left.record(torch.cuda.current_stream(self.device))
                self._ring.append(buffer)
            return self.rows.layout.unflatten(batch), self._streams.current()

    def take(self, queued: tuple[Any, Any]) -> list[Any]:
        """What `queue` gave, on the current stream from now on, which may be another by now."""
        batch, made_on = queued
        for tensor in self.rows.layout.flatten(batch):
            self._streams.bring_over(tensor, made_on)
        return [batch]

    def get(self, places: Indices) -> Any:
        """The batch of these samples, on the current stream."""
        return self.take(self.queue(places))[0]

    def close(self) -> None:
        """Wait for the copies in flight, and let go of the buffers."""
        with self._lock:
            self._end()

    def _next_buffer(self, count: int) -> "_Buffer | None":
        if self._ring and self._ring[0].count < count:  # too small for this batch: begin anew
            _end(self._ring, self._registered)
        if len(self._ring) == _BUFFERS:
            buffer = self._ring.popleft()
            buffer.left.synchronize()
            return buffer
        buffer = _Buffer(self.rows.layout, count)
        reason = self._registered.add(buffer.memory)
        if reason:
            self._by_buffer = False
            self.why += f"; not by a buffer, {reason}"
            return None
        return buffer


class _Buffer:
    """Memory for a batch; `left` is the event after the copy that last read it."""

    def __init__(self, layout: Layout, count: int) -> None:
        self.count, self._leaves = count, layout.leaves
        self.left = torch.cuda.Event(blocking=True)
        # Leaves begin at multiples of 16 bytes, as in a row.
        self._begins = [offset * count for offset in layout.offsets]
        self.memory: Bytes = np.frombuffer(mmap.mmap(-1, max(1, count) * layout.row_bytes), np.uint8)

    def of(self, count: int) -> list[torch.Tensor]:
        """Tensors in it for a batch of that many, no more than it has room for."""
        parts = zip(self._leaves, self._begins, strict=True)
        flat = [
            (torch.from_numpy(self.memory[begin : begin + count * leaf.bytes]), leaf) for leaf, begin in parts
        ]
        return [as_leaf(part.view(count, leaf.bytes), leaf) for part, leaf in flat]


def _end(ring: "deque[_Buffer]", registered: Registered) -> None:
    """Nothing of this is a forked child's."""
    while ring and registered.ours:
        ring.popleft().left.synchronize()
    registered.end()
