"""What a training step takes of a device, found by making one: volumes get what it leaves."""

from contextlib import nullcontext

import torch

from stoker.train.config import Precision
from stoker.workloads.vesuvius.loss import segmentation_losses
from stoker.workloads.vesuvius.unet import UNet3d

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Values that an optimizer keeps for each weight: two moments of AdamW, and one for a running mean.
_KEPT = 3


def measure_step(
    model: UNet3d, patch: tuple[int, int, int], batch_size: int, precision: Precision, device: torch.device
) -> int:
    """The most bytes that torch had set aside over one forward and backward, and what an optimizer keeps.

    Out of memory is the caller's to handle.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    model.to(device).train()
    patches = torch.zeros((batch_size, 1, *patch), device=device)
    labels = torch.zeros((batch_size, 1, *patch), dtype=torch.uint8, device=device)
    kind = _AUTOCAST.get(precision)
    with nullcontext() if kind is None else torch.autocast("cuda", dtype=kind):
        logits = model(patches)
    dice, entropy = segmentation_losses(logits, labels)
    (dice + entropy).mean().backward()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_reserved(device) - before
    weights = sum(weight.nbytes for weight in model.parameters())
    del logits, dice, entropy, patches, labels
    model.zero_grad()
    model.cpu()
    torch.cuda.empty_cache()
    return peak + _KEPT * weights
