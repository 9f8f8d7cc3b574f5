"""Samples' numbers worked out by the GPU that gathers by them: the host has nothing to do or to send."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, cast

import torch

from stoker.feed.kernels import tried_on
from stoker.feed.order import Shard

Kernel: TypeAlias = Callable[[int, tuple[int, int], int, int, int, torch.device], torch.Tensor]


def worked_out_on(device: torch.device, shards: Sequence[Shard]) -> torch.Tensor | None:
    """The samples of an order's consecutive shards, one after the other; None where the host must do it."""
    first, last = shards[0], shards[-1]
    run, end = first.run, last.run
    if device.type != "cuda" or run is None or end is None or run.shuffle is None:
        return None
    kernel = _kernel(device)
    if kernel is None:
        return None
    length, key = run.shuffle
    shape = (len(shards), run.shape[1])
    return kernel(run.first + first.row * run.apart, shape, run.apart, length, key, device)


@cache
def _kernel(device: torch.device) -> Kernel | None:
    """The kernel, where this device runs it and comes to the same numbers; tried once."""
    module = tried_on(device, "permutation_kernel", "the host works the order out, some 20 us a batch")
    return None if module is None else cast(Kernel, module.permute_rows)
