"""Dice and cross entropy over the voxels that are labelled; each coarser level counts half as much.

Each sample has a loss of its own, and a batch the mean of them: so the gradient of a batch is that of its
micro-batches, weighted by their samples.
"""

from collections.abc import Sequence

import torch
from torch import nn

from stoker.workloads.vesuvius.scrolls import SHEET, UNLABELLED

# Added above and below: a sample without a sheet has a Dice of 1 where none is predicted.
_SMOOTH = 1.0


def segmentation_losses(
    logits: Sequence[torch.Tensor], labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The Dice loss and the cross entropy of each sample, over all levels of logits.

    A sample with no labelled voxel has no part in the gradient: both are 0 for it.
    """
    weights = torch.tensor([0.5**level for level in range(len(logits))])
    weights /= weights.sum()
    dice = entropy = torch.zeros(len(labels), device=labels.device)
    for weight, level in zip(weights.tolist(), logits, strict=True):
        labels_there = shrink_labels(labels, level.shape[2:])
        level_dice, level_entropy = _level_losses(level.float(), labels_there)
        dice, entropy = dice + weight * level_dice, entropy + weight * level_entropy
    return dice, entropy


def shrink_labels(labels: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """The labels of a coarser level: of each cell the voxel at its first corner."""
    steps = [whole // part for whole, part in zip(labels.shape[2:], size, strict=True)]
    return labels[:, :, :: steps[0], :: steps[1], :: steps[2]]


def _level_losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = logits.flatten(1), labels.flatten(1)
    known = labels != UNLABELLED
    target = (labels == SHEET).float()
    voxels = known.sum(1)
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    entropy = (entropy * known).sum(1) / voxels.clamp_min(1)
    chance = logits.sigmoid() * known
    both = (chance * target).sum(1)
    dice = 1 - (2 * both + _SMOOTH) / (chance.sum(1) + (target * known).sum(1) + _SMOOTH)
    return dice * (voxels > 0), entropy
