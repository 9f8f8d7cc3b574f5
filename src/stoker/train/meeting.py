"""What ranks agree on before they go on: over gloo, on the host, so that no device is waited for."""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Gradients go in pieces of this size: large enough for the bus, and sent while others are packed. Few at a
# time, since all at once would be a second copy of them on a card that may be full.
_PIECE_BYTES = 32 * 2**20
_UNDER_WAY = 4
# Rank 0 may predict whole volumes or save to a slow disk while the others wait: torch's own half an hour
# would end them. A rank that died is known at once, by its closed connection.
_PATIENCE = timedelta(days=2)


class Meeting:
    """All ranks of a training; with one rank everything is agreed on at once."""

    def __init__(self) -> None:
        there = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if there else 1
        self.rank = dist.get_rank() if there else 0
        self._group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE) if self.size > 1 else None

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether some rank has set it."""
        if self._group is None:
            return list(flags)
        told = torch.tensor([int(flag) for flag in flags], dtype=torch.int32)
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(flag) for flag in told.tolist()]

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over the ranks."""
        if self._group is None:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(told, group=self._group)
        return [float(value) for value in told.tolist()]

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value, on rank 0; None elsewhere."""
        if self._group is None:
            return [value]
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self._group)
        return found

    def share(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def try_room(self, weights: Sequence[Tensor]) -> None:
        """Take what `add_gradients` will need at the most, and let go of it: torch keeps it ready.

        An error of memory comes here then, where ranks can still say so, and not between those that wait.
        """
        if self._group is None:
            return
        missing = [torch.empty_like(weight) for weight in weights if weight.grad is None]
        pieces = sorted(_pieces(weights), key=_bytes_of)[-_UNDER_WAY:]
        under_way = [piece[0].new_empty(sum(one.numel() for one in piece)) for piece in pieces]
        del missing, under_way

    def add_gradients(self, weights: Sequence[Tensor], used: Sequence[bool]) -> None:
        """Sum the gradients of all ranks into each rank's; `used` names those that some rank has."""
        if self._group is None:
            return
        ready = []
        for weight, is_used in zip(weights, used, strict=True):
            if is_used:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                ready.append(weight.grad)
        sent: deque[tuple[list[Tensor], Tensor, Any]] = deque()
        for piece in _pieces(ready):
            if len(sent) == _UNDER_WAY:
                _take(*sent.popleft())
            sent.append((piece, *_send(piece)))
        while sent:
            _take(*sent.popleft())

    def share_buffers(self, buffers: Sequence[Tensor]) -> None:
        """Rank 0's values in every rank's buffers: batch statistics are judged as they are saved."""
        if self._group is None:
            return
        for buffer in buffers:
            dist.broadcast(buffer, src=0)


def _send(piece: Sequence[Tensor]) -> tuple[Tensor, Any]:
    flat = torch.cat([gradient.reshape(-1) for gradient in piece])
    return flat, dist.all_reduce(flat, async_op=True)


def _take(piece: Sequence[Tensor], flat: Tensor, work: Any) -> None:
    """Wait for a piece, and put what came into its gradients."""
    work.wait()
    at = 0
    for gradient in piece:
        gradient.copy_(flat[at : at + gradient.numel()].view(gradient.shape))
        at += gradient.numel()


def _bytes_of(piece: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in piece)


def _pieces(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbours of one type, up to so many bytes together."""
    pieces: list[list[Tensor]] = []
    room = 0
    for gradient in gradients:
        if not pieces or gradient.nbytes > room or gradient.dtype != pieces[-1][0].dtype:
            pieces.append([])
            room = _PIECE_BYTES
        pieces[-1].append(gradient)
        room -= gradient.nbytes
    return pieces
