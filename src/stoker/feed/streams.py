"""Which CUDA stream asks for batches: nearly always one; where it is another, it waits for the first.

A batch is gathered on the stream that is current when it is asked for, a few at a time. A loop that draws its
first batch outside its prefetcher's stream, say, then has the rest of them on another stream.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from stoker.feed.order import Shard


class Streams:
    """The streams of one device on which samples are put and batches are asked for; a CPU has none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index if device.type == "cuda" else None
        self._putting: Any = None
        self._known: dict[Any, torch.cuda.Stream] = {}

    def join(self) -> None:
        """Samples are put and read on the current stream from now on: after what others have put."""
        if self._index is None:
            return
        told = torch._C._cuda_getCurrentStream(self._index)
        if self._putting not in (None, told):
            torch.cuda.synchronize(self._device)
        self._putting = told

    def join_all(self) -> None:
        """No more is put: what was, is there for every stream."""
        if self._putting is not None:
            torch.cuda.synchronize(self._device)
            self._putting = None

    def current(self) -> Any:
        """The current stream, to be given to `bring_over`; None on a CPU."""
        if self._index is None:
            return None
        told = torch._C._cuda_getCurrentStream(self._index)
        self._stream(told)
        return told

    def bring_over(self, tensor: torch.Tensor, made_on: Any) -> None:
        """Let the current stream read a tensor that was made on that one."""
        if self._index is None:
            return
        now = torch._C._cuda_getCurrentStream(self._index)
        if now != made_on:
            current = self._stream(now)
            current.wait_stream(self._stream(made_on))
            tensor.record_stream(current)

    def hand(self, shards: Sequence[Shard], batches: Sequence[Any]) -> Iterator[tuple[Shard, Any]]:
        """Each batch, gathered on the stream that is current now, to whichever stream is current by then."""
        if self._index is None or len(batches) == 1:
            yield from zip(shards, batches, strict=True)
            return
        told = torch._C._cuda_getCurrentStream(self._index)
        gathering = self._stream(told)
        for shard, batch in zip(shards, batches, strict=True):
            now = torch._C._cuda_getCurrentStream(self._index)
            if now != told:
                current = self._stream(now)
                current.wait_stream(gathering)
                for tensor in tree_leaves(batch):
                    if isinstance(tensor, torch.Tensor):
                        tensor.record_stream(current)
            yield shard, batch

    def _stream(self, told: Any) -> torch.cuda.Stream:
        """The current stream, of which this was told: asking torch for it takes 7 us (H200's host)."""
        if told not in self._known:
            self._known[told] = torch.cuda.current_stream(self._device)
        return self._known[told]
