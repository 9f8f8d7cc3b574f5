"""Channels last in memory: of images, and of volumes, each in the format that torch has for it."""

import pytest
import torch
from torch import nn

from stoker.changes.channels_last import _around

FLAT, DEEP = torch.channels_last, torch.channels_last_3d


def strides(model: nn.Module, given: torch.Tensor, layout: torch.memory_format) -> list[bool]:
    """Call it with the change: whether its input, then its weights of that many dimensions, are laid out."""
    seen: list[bool] = []

    def inner(value: torch.Tensor) -> torch.Tensor:
        seen.append(value.is_contiguous(memory_format=layout))
        out: torch.Tensor = model.forward(value)
        return out

    out = _around(model, inner, (given,), {})
    torch.testing.assert_close(out, model.forward(given))
    weights = [p for p in model.parameters() if p.dim() == given.dim()]
    return seen + [p.is_contiguous(memory_format=layout) for p in weights]


@pytest.mark.parametrize(
    ("model", "shape", "layout"),
    [
        (nn.Conv2d(3, 8, 3), (2, 3, 8, 8), FLAT),
        (nn.Conv3d(3, 8, 3), (2, 3, 8, 8, 8), DEEP),
        (nn.Sequential(nn.Conv3d(3, 8, 3), nn.Flatten(1, 2), nn.Conv2d(48, 4, 3)), (2, 3, 8, 8, 8), DEEP),
    ],
)
def test_images_and_volumes_are_laid_out(
    model: nn.Module, shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    """A network of volumes runs on, with the same results; one of both has each in its own format."""
    assert all(strides(model, torch.randn(shape), layout))


def test_frames_for_a_network_of_images_are_left() -> None:
    """It has no convolution for five dimensions, and may take another view of what it is given."""

    class OfFrames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(3, 8, 3)

        def forward(self, frames: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(frames.view(-1, *frames.shape[2:]))
            return out

    assert strides(OfFrames(), torch.randn(2, 5, 3, 8, 8), DEEP) == [False]
