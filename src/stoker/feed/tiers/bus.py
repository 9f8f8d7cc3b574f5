"""Rows in the host's memory, brought to a GPU over the bus.

The memory is registered with the driver: then the GPU reads it by its host address, and one kernel gathers a
batch without the CPU. Where that cannot be (no Triton), the CPU gathers into a small registered buffer,
and the copy engine moves that. Where no memory can be registered, the batch is copied as it stands.

A gather is over when the GPU says so, not when the call returns: rows stay mapped and registered until then.
"""

import mmap
import os
import threading
import weakref
from collections import deque
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import Any

import numpy as np
import torch

from stoker.errors import UsageError
from stoker.feed.layout import Layout
from stoker.feed.tiers.pack import Bytes
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.tiers.rows import as_leaf, fresh

# Batches that may be on their way by the copy engine while the CPU gathers the next.
_BUFFERS = 3
# cudaHostRegisterPortable | cudaHostRegisterMapped
_FLAGS = 3


class Bus:
    """Hands out batches of rows on a CUDA device. `why` says how, and why not better.

    The rows stay their owner's: close the bus first, then them.
    """

    def __init__(self, rows: SharedRows, device: torch.device) -> None:
        self.rows, self.device, self.why = rows, device, "gathered by the GPU over the bus"
        self._lock = threading.Lock()
        self._in_flight: deque[torch.cuda.Event] = deque()
        self._ring: deque[_Buffer] = deque()
        self._registered: list[Bytes] = []
        self._by_gpu, self._by_buffer = False, True
        self._end = weakref.finalize(self, _end, os.getpid(), self._in_flight, self._registered)
        reason = self._register(rows.memory) or self._try_kernel()
        self._by_gpu = not reason
        if reason:
            self.why = f"gathered by the CPU, then copied: {reason}"
            _unregister(self._registered)

    def get(self, indices: torch.Tensor) -> Any:
        """The batch of these samples (int64, on the device or the host), on the current stream."""
        with self._lock, torch.cuda.device(self.device):
            if not self._end.alive:
                raise UsageError("this bus was closed: make another to go on")
            while self._in_flight and self._in_flight[0].query():
                self._in_flight.popleft()
            batch = self._gather(indices) if self._by_gpu else self._copy(indices.cpu())
        return self.rows.layout.unflatten(batch)

    def close(self) -> None:
        """Wait for the gathers in flight, and let go of the memory."""
        with self._lock:
            self._ring.clear()
            self._end()

    def _gather(self, indices: torch.Tensor) -> list[torch.Tensor]:
        from stoker.feed.tiers.bus_kernel import gather

        rows, _ = self.rows.opened()
        chosen = indices.to(self.device).contiguous()
        batch = []
        for words, leaf in zip(rows, self.rows.layout.leaves, strict=True):
            out = torch.empty((len(chosen), words.shape[1]), dtype=words.dtype, device=self.device)
            gather(words, chosen, out)
            batch.append(as_leaf(out, leaf))
        self._note()
        return batch

    def _copy(self, indices: torch.Tensor) -> list[torch.Tensor]:
        """Gathered by the CPU: into a buffer whose last batch has left it, if it can be registered."""
        buffer = self._next_buffer(len(indices)) if self._by_buffer else None
        leaves = self.rows.layout.leaves
        host = [fresh(leaf, len(indices)) for leaf in leaves] if buffer is None else buffer.of(len(indices))
        self.rows.gather(indices, host)
        if buffer is None:
            return [tensor.to(self.device) for tensor in host]
        batch = [tensor.to(self.device, non_blocking=True) for tensor in host]
        buffer.left = self._note()
        self._ring.append(buffer)
        return batch

    def _next_buffer(self, count: int) -> "_Buffer | None":
        if self._ring and self._ring[0].count < count:  # too small for this batch: begin anew
            for event in self._in_flight:
                event.synchronize()
            self._ring.clear()
            _unregister(self._registered)
        if len(self._ring) == _BUFFERS:
            buffer = self._ring.popleft()
            buffer.left.synchronize()
            return buffer
        buffer = _Buffer(self.rows.layout, count)
        reason = self._register(buffer.memory)
        if reason:
            self._by_buffer = False
            self.why += f"; not by a buffer, {reason}"
            return None
        return buffer

    def _note(self) -> torch.cuda.Event:
        """An event after all that was queued so far; who waits for it sleeps, and does not spin."""
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self._in_flight.append(event)
        return event

    def _register(self, memory: Bytes) -> str:
        """Have the driver pin this memory; what stood in the way, if anything did."""
        with torch.cuda.device(self.device):
            code = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, _FLAGS))
        if code:
            try:
                torch.zeros(
                    1, device=self.device
                )  # the error is told once more, to who asks next: let it be us
            except RuntimeError:
                pass
            return f"the driver did not register {memory.nbytes} bytes (CUDA error {code})"
        self._registered.append(memory)
        return ""

    def _try_kernel(self) -> str:
        """Gather one row and look at it; what stood in the way, if anything did."""
        if find_spec("triton") is None:
            return "triton is not installed"
        try:
            got = _first_row(self._gather(torch.zeros(1, dtype=torch.int64)))
        except (RuntimeError, OSError, SubprocessError) as error:  # no compiler, a full disk, a card too old
            return f"the kernel did not run ({error!r})"
        expected = _first_row(self.rows.opened()[0])
        return "" if got == expected else "the kernel read something else than is there"


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


def _first_row(tensors: list[torch.Tensor]) -> list[bytes]:
    return [tensor[:1].cpu().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


def _unregister(registered: list[Bytes]) -> None:
    while registered:
        torch.cuda.cudart().cudaHostUnregister(registered.pop().ctypes.data)


def _end(pid: int, in_flight: deque[torch.cuda.Event], registered: list[Bytes]) -> None:
    """Nothing of this is a forked child's: it has no CUDA, and the registrations are its parent's."""
    if os.getpid() != pid:
        return
    while in_flight:
        in_flight.popleft().synchronize()
    _unregister(registered)
