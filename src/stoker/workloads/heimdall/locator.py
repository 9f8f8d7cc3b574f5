"""From what several receivers measured to a position and how sure it is, by attention over the receivers.

Receivers are a set: they carry their own places, and have no order. One that did not hear takes no part.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker.errors import UsageError
from stoker.workloads.heimdall.measurements import FEATURES

# About the middle and the spread of what is measured: power, ratio, arrival, offset, sureness.
_MIDDLE = (-85.0, 25.0, 15.0, 0.0, -1.5)
_SPREAD = (20.0, 18.0, 15.0, 150.0, 1.0)
_PLACES = 2
_KM = 1000.0
# Logarithms of a deviation in km: from 10 m to 20 km.
_LEAST, _MOST = -4.6, 3.0
# Of the channels of a signal's first convolution, a quarter of the width, there is one at least.
_LEAST_WIDTH = 4


def check_size(width: int, layers: int, heads: int) -> None:
    """UsageError where no locator can be so wide, or have so many layers and heads."""
    if min(width, layers, heads) < 1 or width % heads or width < _LEAST_WIDTH:
        raise UsageError(
            f"width is {width}, layers {layers} and heads {heads}: take 1 or more of each, and a width of "
            f"{_LEAST_WIDTH} or more that the heads divide"
        )


class Estimate(NamedTuple):
    """A normal distribution of each sample's position, in km: its mean, and the lower factor of its spread.

    The covariance is `lower @ lower.T`.
    """

    mean: Tensor
    lower: Tensor

    def standardise(self, position: Tensor) -> Tensor:
        """Where positions lie in the distribution, in deviations along its axes."""
        away = (position - self.mean)[..., None]
        standard: Tensor = torch.linalg.solve_triangular(self.lower, away, upper=False)[..., 0]
        return standard


class Locator(nn.Module):
    """Measurements of a batch to estimates.

    Args:
        area_m: the side of the square, which scales places.
        width: of what is known of one receiver.
        layers: of attention.
        heads: of each.
    """

    scale: Tensor
    middle: Tensor
    spread: Tensor

    def __init__(self, *, area_m: float, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        check_size(width, layers, heads)
        self.register_buffer("scale", torch.tensor(area_m / 2))
        self.register_buffer("middle", torch.tensor(_MIDDLE))
        self.register_buffer("spread", torch.tensor(_SPREAD))
        self.measured = nn.Sequential(nn.Linear(len(FEATURES), width), nn.GELU(), nn.Linear(width, width))
        self.signal = nn.Sequential(
            nn.Conv1d(2, width // 4, kernel_size=9, stride=4, padding=4),
            nn.GELU(),
            nn.Conv1d(width // 4, width // 2, kernel_size=9, stride=4, padding=4),
            nn.GELU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(width // 2, width),
        )
        self.asking = nn.Parameter(torch.randn(width) * 0.02)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)
        # It begins with what is known of a sample that nobody heard: it is anywhere in the square.
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([0.0, 0.0, *[math.log(area_m / math.sqrt(12) / _KM)] * 2, 0.0]))

    def forward(self, features: Tensor, iq: Tensor, heard: Tensor) -> Estimate:
        """`features` (B, R, F), `iq` (B, R, 2, T) as int8, `heard` (B, R)."""
        signals = self.signal(iq.flatten(0, 1).to(self.asking.dtype) / 36).view(*heard.shape, -1)
        tokens = self.measured(self._normalise(features)) + signals
        asking = self.asking.to(tokens.dtype).expand(len(tokens), 1, -1)
        tokens = torch.cat([asking, tokens], dim=1)
        # What asks is always there; nobody looks at a receiver that did not hear.
        present = functional.pad(heard.bool(), (1, 0), value=True)[:, None, None, :]
        for block in self.blocks:
            tokens = block(tokens, present)
        return self._estimate(self.head(self.norm(tokens[:, 0])).float())

    def _normalise(self, features: Tensor) -> Tensor:
        places = features[..., :_PLACES] / self.scale
        told = torch.cat([features[..., _PLACES:-1], features[..., -1:].clamp_min(1e-3).log()], dim=-1)
        return torch.cat([places, (told - self.middle) / self.spread], dim=-1)

    def _estimate(self, raw: Tensor) -> Estimate:
        mean = raw[:, :2] * (self.scale / _KM)
        deviations = raw[:, 2:4].clamp(_LEAST, _MOST).exp()
        lower = torch.diag_embed(deviations)
        lower = lower + functional.pad(raw[:, 4, None, None], (0, 1, 1, 0))
        return Estimate(mean, lower)


class _Block(nn.Module):
    """Attention and a small network, each beside what it adds to."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        # No bias: one of the keys changes no attention, so its gradient is rounding alone, and AdamW would
        # make full steps of that; trainings on other numbers of ranks would part there.
        self.ask = nn.Linear(width, 3 * width, bias=False)
        self.answer = nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        """`present` is True for what may be looked at."""
        batch, count, width = tokens.shape
        asked = self.ask(self.before(tokens)).view(batch, count, 3, self.heads, width // self.heads)
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=present)
        tokens = tokens + self.answer(seen.transpose(1, 2).reshape(batch, count, width))
        thought: Tensor = self.think(self.between(tokens))
        return tokens + thought


def surprise(estimate: Estimate, position: Tensor) -> Tensor:
    """The negative logarithm of each position's density (in km), without its constant."""
    deviations = torch.diagonal(estimate.lower, dim1=-2, dim2=-1)
    return deviations.log().sum(-1) + 0.5 * estimate.standardise(position).square().sum(-1)
