"""How a segmentation is judged: Dice of the voxels, and Dice of the surfaces within a tolerance.

Voxels that are not labelled count for nothing, and those that an earlier patch has too (`covered`: how many
from the front, a row of three axes a patch) are only looked at. Both sum up over batches and ranks and divide
at the end, so the result does not hang on how the volume was cut into patches (but for surfaces at the
patches' edges).
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import conv3d, max_pool3d
from torchmetrics import Metric

from stoker.workloads.vesuvius.scrolls import SHEET, UNLABELLED


class Dice(Metric):  # type: ignore[misc]
    """Twice the voxels of both over the voxels of each, over everything seen; 1 where neither has any."""

    higher_is_better = True
    full_state_update = False
    both: Tensor
    each: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("both", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("each", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, found: Tensor, labels: Tensor, covered: Tensor | None = None) -> None:
        """`found` is True where a sheet is predicted; both (B, 1, D, H, W)."""
        known = labels != UNLABELLED
        if covered is not None:
            known &= find_new(covered, labels)
        found, sheet = found & known, (labels == SHEET) & known
        self.both += (found & sheet).sum()
        self.each += found.sum() + sheet.sum()

    def compute(self) -> Tensor:
        """Of all that was seen."""
        return torch.where(self.each > 0, 2 * self.both / self.each.clamp_min(1), 1.0)


class SurfaceDice(Metric):  # type: ignore[misc]
    """The share of both surfaces' voxels that lie within `tolerance` voxels of the other surface.

    A surface voxel belongs to the mask and has one of its six neighbours outside. Distances are from voxel to
    voxel; what of a surface lies next to an unlabelled voxel is left out, since nobody knows how it goes on.

    Args:
        tolerance: in voxels, 0 or more.
    """

    higher_is_better = True
    full_state_update = False
    near: Tensor
    all: Tensor

    def __init__(self, tolerance: float = 2.0) -> None:
        super().__init__()
        self.tolerance = tolerance
        self.add_state("near", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("all", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, found: Tensor, labels: Tensor, covered: Tensor | None = None) -> None:
        """`found` is True where a sheet is predicted; both (B, 1, D, H, W)."""
        unknown = labels == UNLABELLED
        untold = _grow(unknown)
        surfaces = [find_surface(mask & ~unknown) & ~untold for mask in (found, labels == SHEET)]
        reached = [reach(surface, self.tolerance) for surface in surfaces]
        if covered is not None:
            new = find_new(covered, labels)
            surfaces = [surface & new for surface in surfaces]
        self.near += (surfaces[0] & reached[1]).sum() + (surfaces[1] & reached[0]).sum()
        self.all += surfaces[0].sum() + surfaces[1].sum()

    def compute(self) -> Tensor:
        """Of all that was seen."""
        return torch.where(self.all > 0, self.near / self.all.clamp_min(1), 1.0)


def find_new(covered: Tensor, labels: Tensor) -> Tensor:
    """Voxels that no earlier patch has, (B, 1, D, H, W): those behind the covered ones on every axis."""
    new = torch.ones_like(labels, dtype=torch.bool)
    for axis in range(3):
        shape = [-1 if axis == each else 1 for each in range(3)]
        place = torch.arange(labels.shape[2 + axis], device=labels.device).view(1, 1, *shape)
        new &= place >= covered[:, axis].view(-1, 1, 1, 1, 1)
    return new


def find_surface(mask: Tensor) -> Tensor:
    """Voxels of a mask with one of six neighbours outside; beyond the edges it is taken to go on."""
    return mask & _grow(~mask)


def reach(surface: Tensor, tolerance: float) -> Tensor:
    """Voxels no farther than `tolerance` from a voxel of the surface."""
    ball = _ball(tolerance).to(surface.device)
    return conv3d(surface.float(), ball, padding=ball.shape[-1] // 2) > 0.5


def _grow(mask: Tensor) -> Tensor:
    """A mask and the six neighbours of its voxels."""
    values = mask.float()
    grown = values
    for axis in range(3):
        size = [3 if axis == each else 1 for each in range(3)]
        grown = torch.maximum(grown, max_pool3d(values, size, stride=1, padding=[side // 2 for side in size]))
    return grown > 0.5


@lru_cache(maxsize=8)
def _ball(radius: float) -> Tensor:
    side = torch.arange(-int(radius), int(radius) + 1, dtype=torch.float32)
    squares = side[:, None, None] ** 2 + side[None, :, None] ** 2 + side[None, None, :] ** 2
    return (squares <= radius**2).float()[None, None]
