"""The three SAR autoencoders: 256x256 patches to 16x16 codes of a few channels, and back.

    model                  block                       blocks a stage, in / out   parameters
    ResNetLite             after activation            3 / 2                      5.6 M at base 32
    ResidualAutoencoder    before activation           3 / 3                      5.99 M, 23.8 M at base 64
    AttentionAutoencoder   the same, with CBAM in each 3 / 3                      6.0 M

They differ in their blocks alone, so that a comparison tells of those.
"""

from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import UsageError
from stoker.workloads.sar.blocks import BasicBlock, Cbam, MakeBlock, PreActivationBlock, conv

# Widths of the stages, in multiples of the base; each halves height and width once.
_WIDTHS = (1, 2, 4, 8)
SHRINK = 2 ** len(_WIDTHS)


class Autoencoder(nn.Module):
    """An encoder to codes of `latent` channels at a sixteenth of the size, and a decoder back to 0..1."""

    def __init__(
        self, block: MakeBlock, *, base: int, latent: int, encoder_blocks: int, decoder_blocks: int
    ) -> None:
        super().__init__()
        if base < 8 or base % 8 or latent < 1:
            raise UsageError(
                f"base {base} with {latent} latent channels: take a base that 8 divides, and 1 or more"
            )
        self.encoder = _encoder(block, base, latent, encoder_blocks)
        self.decoder = _decoder(block, base, latent, decoder_blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is None:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """The patches, rebuilt from their codes: (B, 1, H, W) in, the same out."""
        rebuilt: torch.Tensor = self.decoder(self.encode(patches))
        return rebuilt

    def encode(self, patches: torch.Tensor) -> torch.Tensor:
        """The codes: (B, latent, H / 16, W / 16)."""
        height, width = patches.shape[-2:]
        if height % SHRINK or width % SHRINK:
            raise UsageError(f"patches of {height}x{width}: give sides that {SHRINK} divides")
        codes: torch.Tensor = self.encoder(patches)
        return codes


class ResNetLite(Autoencoder):
    """The baseline: plain residual blocks."""

    def __init__(self, *, base: int = 32, latent: int = 16) -> None:
        super().__init__(BasicBlock, base=base, latent=latent, encoder_blocks=3, decoder_blocks=2)


class ResidualAutoencoder(Autoencoder):
    """Pre-activation residual blocks."""

    def __init__(self, *, base: int = 32, latent: int = 16) -> None:
        super().__init__(PreActivationBlock, base=base, latent=latent, encoder_blocks=3, decoder_blocks=3)


class AttentionAutoencoder(Autoencoder):
    """Pre-activation residual blocks, each weighed by CBAM."""

    def __init__(self, *, base: int = 32, latent: int = 16) -> None:
        block = partial(PreActivationBlock, attention=Cbam)
        super().__init__(block, base=base, latent=latent, encoder_blocks=3, decoder_blocks=3)


ModelName: TypeAlias = Literal["resnet_lite", "residual", "attention"]
MODELS: dict[ModelName, type[ResNetLite | ResidualAutoencoder | AttentionAutoencoder]] = {
    "resnet_lite": ResNetLite,
    "residual": ResidualAutoencoder,
    "attention": AttentionAutoencoder,
}


class _Enlarge(nn.Module):
    """Twice the height and width, then a convolution: without the checkerboard of a strided transpose."""

    def __init__(self, wide_in: int, wide_out: int) -> None:
        super().__init__()
        self.conv = conv(wide_in, wide_out)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        enlarged: torch.Tensor = self.conv(functional.interpolate(values, scale_factor=2.0, mode="nearest"))
        return enlarged


def _encoder(block: MakeBlock, base: int, latent: int, blocks: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(1, base, 7, stride=2, padding=3)]
    wide = base
    for stage, width in enumerate(_WIDTHS):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            layers.append(block(wide, base * width, stride))
            wide = base * width
    layers += [nn.ReLU(), nn.Conv2d(wide, latent, 3, padding=1)]
    return nn.Sequential(*layers)


def _decoder(block: MakeBlock, base: int, latent: int, blocks: int) -> nn.Sequential:
    wide = base * _WIDTHS[-1]
    layers: list[nn.Module] = [nn.Conv2d(latent, wide, 3, padding=1, bias=False)]
    for width in reversed(_WIDTHS[:-1]):
        layers.append(_Enlarge(wide, base * width))
        wide = base * width
        layers += [block(wide, wide, 1) for _ in range(blocks)]
    # The last doubling learns its own way: at full size a 3x3 convolution of all channels would be dear.
    layers += [
        nn.ConvTranspose2d(wide, wide, 2, stride=2),
        nn.ReLU(),
        nn.Conv2d(wide, 1, 3, padding=1),
        nn.Sigmoid(),
    ]
    return nn.Sequential(*layers)
