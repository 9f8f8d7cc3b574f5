"""Samples' numbers worked out by the GPU that gathers by them: the host has nothing to do or to send."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import TypeAlias

import torch

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
    if find_spec("triton") is None:
        return None
    from stoker.feed import permutation_kernel  # imports triton, which only CUDA builds of torch bring

    try:
        permutation_kernel.try_on(device)
    except (RuntimeError, OSError, SubprocessError) as error:  # no compiler, a card too old, a full disk
        warnings.warn(
            f"the kernel for the order cannot be used here ({error}); the host works it out, some 20 us a "
            "batch. Triton needs a C compiler and a writable cache folder (TRITON_CACHE_DIR).",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    return permutation_kernel.permute_rows
