"""How near a rebuilt patch is: structural similarity, and the loss of it and the mean squared error."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import UsageError

# Wang et al. 2004: a Gaussian of 11 pixels, and constants for values that span 1.
_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


def structural_similarity(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """SSIM of images (B, 1, H, W) with values from 0 to 1: one number for each, 1 where they are equal.

    Computed in float32 whatever it is called in: its variances are differences of nearly equal numbers.
    """
    if one.shape != other.shape or one.dim() != 4 or one.shape[1] != 1 or min(one.shape[2:]) < _WINDOW:
        raise UsageError(
            f"images of {tuple(one.shape)} and {tuple(other.shape)}: give two batches alike, of one channel "
            f"and {_WINDOW} pixels or more a side"
        )
    with torch.autocast(one.device.type, enabled=False):
        one, other = one.float(), other.float()
        moments = torch.cat([one, other, one * one, other * other, one * other], dim=1)
        mean_1, mean_2, square_1, square_2, product = _blur(moments).unbind(1)
        both = mean_1 * mean_2
        squares = mean_1.square() + mean_2.square()
        covariance = product - both
        variances = square_1 + square_2 - squares
        similar = (2 * both + _C1) * (2 * covariance + _C2) / ((squares + _C1) * (variances + _C2))
        return similar.mean(dim=(1, 2))


def _blur(images: torch.Tensor) -> torch.Tensor:
    """Each channel under the window, with the image mirrored at its edges, as torchmetrics does it."""
    batch, channels, height, width = images.shape
    weights, margin = _window(images.device), _WINDOW // 2
    flat = functional.pad(images, (margin,) * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
    flat = functional.conv2d(functional.conv2d(flat, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
    return flat.view(batch, channels, height, width)


@cache
def _window(device: torch.device) -> torch.Tensor:
    # Kept for all calls, so it must not be of the kind that a first call in inference mode would make: such
    # a tensor can have no part in a backward pass.
    with torch.inference_mode(False):
        places = torch.arange(_WINDOW, device=device, dtype=torch.float32) - _WINDOW // 2
        weights = torch.exp(-places.square() / (2 * _SIGMA**2))
        return weights / weights.sum()


class ReconstructionLoss(nn.Module):
    """`mse` times the mean squared error and `ssim` times (1 - SSIM), each a mean over the samples.

    The field note's first epoch (PSNR 19.26 dB, SSIM 0.487, loss 0.162) has the weights 0.7 and 0.3.
    """

    def __init__(self, *, mse: float = 0.7, ssim: float = 0.3) -> None:
        super().__init__()
        if mse < 0 or ssim < 0 or mse + ssim == 0:
            raise UsageError(
                f"a loss of {mse:g} MSE and {ssim:g} SSIM: take weights of 0 or more, not both 0"
            )
        self.mse, self.ssim = mse, ssim

    def forward(self, rebuilt: torch.Tensor, patches: torch.Tensor) -> dict[str, torch.Tensor]:
        """`loss`, and the parts that it is made of: `mse`, `ssim`."""
        error = functional.mse_loss(rebuilt.float(), patches.float())
        similar = structural_similarity(rebuilt, patches).mean()
        return {"loss": self.mse * error + self.ssim * (1 - similar), "mse": error, "ssim": similar}
