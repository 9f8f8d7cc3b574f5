"""What the SAR autoencoders are built of: residual blocks, before or after activation, and CBAM attention.

All normalise by groups of channels. A sample's output then does not hang on the batch it came in: the same
global batch gives the same maths in one piece, in micro-batches and over any number of ranks. Such a norm
takes a patch's brightness and contrast away, which an autoencoder must give back: so norms stand only inside
the blocks, and the way around them, from the first convolution to the last, has none.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

# Channels that are normalised together.
_GROUP = 8
# Channels of attention's inner layer: a sixteenth of the block's, as its authors have it, and a few at least.
_REDUCTION, _FEWEST = 16, 4
_ATTENTION_KERNEL = 7

# Makes a block from channels in, channels out and stride.
MakeBlock: TypeAlias = Callable[[int, int, int], nn.Module]


def norm(channels: int) -> nn.GroupNorm:
    """Group normalisation of so many channels."""
    return nn.GroupNorm(max(1, channels // _GROUP), channels)


def conv(wide_in: int, wide_out: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps height and width at stride 1."""
    return nn.Conv2d(wide_in, wide_out, 3, stride=stride, padding=1, bias=False)


def _skip(wide_in: int, wide_out: int, stride: int) -> nn.Module:
    if wide_in == wide_out and stride == 1:
        return nn.Identity()
    return nn.Conv2d(wide_in, wide_out, 1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Convolution, norm, activation, twice, with the last activation behind the sum (He et al. 2015)."""

    def __init__(self, wide_in: int, wide_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(wide_in, wide_out, stride), norm(wide_out)
        self.conv2, self.norm2 = conv(wide_out, wide_out), norm(wide_out)
        self.skip = _skip(wide_in, wide_out, stride)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        inner = functional.relu(self.norm1(self.conv1(values)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.skip(values))


class PreActivationBlock(nn.Module):
    """Norm, activation, convolution, twice, with nothing behind the sum (He et al. 2016).

    The way around it stays a plain sum from the first block to the last. `attention`, where given, weighs
    what is added.
    """

    def __init__(
        self, wide_in: int, wide_out: int, stride: int, attention: Callable[[int], nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(wide_in), conv(wide_in, wide_out, stride)
        self.norm2, self.conv2 = norm(wide_out), conv(wide_out, wide_out)
        self.attention = nn.Identity() if attention is None else attention(wide_out)
        self.skip = _skip(wide_in, wide_out, stride)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        inner = self.conv1(functional.relu(self.norm1(values)))
        inner = self.conv2(functional.relu(self.norm2(inner)))
        added: torch.Tensor = self.attention(inner) + self.skip(values)
        return added


class Cbam(nn.Module):
    """Weighs channels, then places, each by what their mean and their maximum say (Woo et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(_FEWEST, channels // _REDUCTION)
        self.shrink, self.widen = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.places = nn.Conv2d(2, 1, _ATTENTION_KERNEL, padding=_ATTENTION_KERNEL // 2, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The values, weighed."""
        mean, top = values.mean(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
        values = values * torch.sigmoid(self._weigh(mean) + self._weigh(top))
        maps = torch.cat([values.mean(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)], dim=1)
        return values * torch.sigmoid(self.places(maps))

    def _weigh(self, pooled: torch.Tensor) -> torch.Tensor:
        weighed: torch.Tensor = self.widen(functional.relu(self.shrink(pooled)))
        return weighed
