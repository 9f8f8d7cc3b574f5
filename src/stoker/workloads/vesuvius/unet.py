"""A 3D U-Net in the manner of nnU-Net: instance norm, leaky ReLU, strided convolutions, transposed ones back.

Instance norm has no batch statistics: what a sample gives does not hang on the others in its batch, so that
accumulation and several ranks compute what one large batch does.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from stoker.errors import UsageError


class UNet3d(nn.Module):
    """Patches (B, 1, D, H, W) to logits of the same size; while training also coarser ones, finest first.

    Args:
        widths: channels of each level; every level but the first halves depth, height and width.
        deep_supervision: whether levels below the finest give logits too while training.
    """

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256), *, deep_supervision: bool = True) -> None:
        super().__init__()
        if len(widths) < 2 or min(widths) < 1:
            raise UsageError(f"widths is {tuple(widths)}: give the channels of at least 2 levels")
        self.divisor = 2 ** (len(widths) - 1)
        self.deep_supervision = deep_supervision
        self.down = nn.ModuleList(
            _two_convolutions(before, width, stride=1 if level == 0 else 2)
            for level, (before, width) in enumerate(pairwise((1, *widths)))
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(below, above, kernel_size=2, stride=2) for above, below in pairwise(widths)
        )
        self.join = nn.ModuleList(_two_convolutions(2 * width, width, stride=1) for width in widths[:-1])
        # The coarsest of the way up is left out, as in nnU-Net: there a sheet is thinner than a voxel.
        heads = max(min(2, len(widths) - 1), len(widths) - 2) if deep_supervision else 1
        self.heads = nn.ModuleList(nn.Conv3d(width, 1, kernel_size=1) for width in widths[:heads])

    def forward(self, patches: torch.Tensor) -> list[torch.Tensor]:
        """Logits, finest first; only those when not training."""
        self._check(patches)
        levels = []
        for block in self.down:
            patches = block(patches)
            levels.append(patches)
        logits: list[torch.Tensor] = []
        coarse = levels[-1]
        for level in reversed(range(len(self.up))):
            fine = torch.cat([self.up[level](coarse), levels[level]], dim=1)
            coarse = self.join[level](fine)
            if level == 0 or (self.training and level < len(self.heads)):
                logits.insert(0, self.heads[level](coarse))
        return logits

    def _check(self, patches: torch.Tensor) -> None:
        if patches.dim() != 5 or any(side % self.divisor for side in patches.shape[2:]):
            raise UsageError(
                f"patches of {tuple(patches.shape[2:])}: each side must be a multiple of {self.divisor}, "
                f"since {len(self.up)} levels halve it; take another patch, or fewer widths"
            )


def _two_convolutions(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels, width, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.InstanceNorm3d(width, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(width, width, kernel_size=3, padding=1, bias=False),
        nn.InstanceNorm3d(width, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )
