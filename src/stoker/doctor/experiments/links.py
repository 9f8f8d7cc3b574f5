"""What the links between ranks give: neighbours send each other bytes, one pair after the other.

The last thing that ranks do, once all else is told: a rank that does not come costs the others a few seconds,
and no figure. A sum over all ranks goes as fast as its slowest link; which one that is, no rank's own time in
it tells.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stoker.doctor.board import Board

# Seconds that the first to be ready waits for the last, and that any message may take.
_PATIENCE = 8.0
_MESSAGE = timedelta(seconds=5)
_TAG = 7_700
_PINGS = 4
_CHUNK = 1 << 18
# Of chunks sent one after the other: for about so many seconds, by what the first took, and no more of them;
# so often, of which the best counts: with fewer cores than ranks a sender or receiver may wait for one.
_SECONDS = 0.05
_MOST = 8
_TRIES = 3


def measure(board: Board) -> dict[str, Any]:
    """What this rank saw of the links on which it sends; or why nothing was sent."""
    why = _why_not()
    if why is None and not board.meet(_PATIENCE):
        why = "not all ranks came to the end"
    if why is not None:
        return {"transfers": [], "why": why}
    found = []
    try:
        for sender, receiver in _pairs(board.ranks):
            if board.rank == sender:
                seconds, rate = _send(receiver)
                found.append({"sender": sender, "receiver": receiver, "seconds": seconds, "rate": rate})
            elif board.rank == receiver:
                _answer(sender)
    except RuntimeError as error:  # of the ranks or the link: torch has one kind for all
        return {"transfers": found, "why": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"transfers": found, "why": None}


def _why_not() -> str | None:
    if not dist.is_available() or not dist.is_initialized():
        return "the ranks have left each other"
    if "gloo" not in dist.get_backend_config():
        return "the ranks have no way to each other that goes by the host"
    return None


def _pairs(ranks: int) -> Iterator[tuple[int, int]]:
    """Each rank and the next, both ways; each pair has a rank of the one before it, so that none overlap."""
    for one in range(ranks if ranks > 2 else 1):
        other = (one + 1) % ranks
        yield one, other
        yield other, one


def _send(receiver: int) -> tuple[float, float]:
    """Seconds there and back for a message of nothing, and bytes a second of many."""
    pings = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        _put(receiver, torch.zeros(1))
        _take(receiver, torch.zeros(1))
        pings.append(time.perf_counter() - began)
    seconds = min(pings)
    chunk = torch.zeros(_CHUNK, dtype=torch.uint8)
    once = _timed_chunks(receiver, chunk, 1)
    count = max(1, min(_MOST, int(_SECONDS / once)))
    _put(receiver, torch.tensor([count]))
    spent = min(_timed_chunks(receiver, chunk, count) for _ in range(_TRIES))
    return seconds, count * _CHUNK / spent


def _timed_chunks(receiver: int, chunk: torch.Tensor, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        _put(receiver, chunk)
    _take(receiver, torch.zeros(1))
    return time.perf_counter() - began


def _answer(sender: int) -> None:
    for _ in range(_PINGS):
        _take(sender, torch.zeros(1))
        _put(sender, torch.zeros(1))
    chunk = torch.zeros(_CHUNK, dtype=torch.uint8)
    _take(sender, chunk)
    _put(sender, torch.zeros(1))
    count = torch.zeros(1, dtype=torch.int64)
    _take(sender, count)
    for _ in range(_TRIES):
        for _ in range(int(count.item())):
            _take(sender, chunk)
        _put(sender, torch.zeros(1))


def _put(rank: int, tensor: torch.Tensor) -> None:
    _wait(dist.isend(tensor, rank, tag=_TAG))


def _take(rank: int, tensor: torch.Tensor) -> None:
    _wait(dist.irecv(tensor, rank, tag=_TAG))


def _wait(work: Any) -> None:
    if work is None:
        raise RuntimeError("this rank is in no group with the others")
    work.wait(_MESSAGE)
