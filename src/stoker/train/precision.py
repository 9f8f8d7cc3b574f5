"""Numbers of fewer bits: which of Fabric's precisions, and TF32, which is a switch of the process."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from stoker.train.config import Precision

_AUTOCAST = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


def plugin_for(precision: Precision, device: str) -> Any:
    """Fabric's plugin: autocast for bf16 and fp16, the latter with a scaler of gradients."""
    from lightning.fabric.plugins import MixedPrecision
    from lightning.fabric.plugins.precision import Precision as FullPrecision

    if precision in _AUTOCAST:
        return MixedPrecision(precision=_AUTOCAST[precision], device=device)
    return FullPrecision()


def ready_scaler(precision: Any, device: torch.device) -> None:
    """Have fp16's scaler hold its scale on the device, the one that it was loaded with or its first.

    By itself it does so in a backward: a rank whose first step has no sample makes none before the update.
    """
    scaler = getattr(precision, "scaler", None)
    if scaler is not None:
        scaler.scale(torch.zeros((), device=device))


@contextlib.contextmanager
def cudnn_benchmark(wanted: bool) -> Iterator[None]:
    """cuDNN's search for the fastest algorithm, inside the block alone; it is a switch of the process too."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def tf32(precision: Precision) -> Iterator[None]:
    """TF32 inside the block, for anything but fp32: autocast leaves products in float32 too."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    wanted = precision != "fp32"
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    torch.backends.cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def put_channels_last(model: torch.nn.Module) -> None:
    """Weights of 2D and 3D convolutions with channels innermost; what has other dimensions stays."""
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    for weight in model.parameters():
        if weight.ndim in kinds:
            weight.data = weight.data.contiguous(memory_format=kinds[weight.ndim])
