"""A step's bytes moved to the device again: from pinned memory, from pageable, and pinned on the way.

What the bus gives either way, and what pinning anew costs. Between steps: the loop does not notice.
"""

import time
from collections.abc import Callable
from statistics import median

import torch

# Less than this a step and no way of moving it is worth a change.
LEAST_BYTES = 1 << 16
_MOST_BYTES = 1 << 30
_TIMES = 6


def move_again(nbytes: int, tell: Callable[..., None]) -> None:
    """Move so many bytes, each way a few times, and tell the median of each."""
    nbytes = min(nbytes, _MOST_BYTES)
    pageable = torch.ones(nbytes, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    tell(
        "copied",
        bytes=nbytes,
        pinned=_time(lambda: target.copy_(pinned, non_blocking=True)),
        pageable=_time(lambda: target.copy_(pageable)),
        pinning=_time(lambda: target.copy_(pageable.pin_memory(), non_blocking=True)),
    )


def _time(move: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TIMES + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        move()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])  # the first allocates
