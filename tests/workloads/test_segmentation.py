"""The U-Net, its loss, how it is judged, and a whole volume by a sliding window."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from stoker.errors import UsageError
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.transforms import VolumeTransform
from stoker.workloads.vesuvius.inference import blending_weight, slide, write_prediction
from stoker.workloads.vesuvius.loss import segmentation_losses, shrink_labels
from stoker.workloads.vesuvius.metrics import Dice, SurfaceDice, find_surface
from stoker.workloads.vesuvius.scrolls import SHEET, UNLABELLED
from stoker.workloads.vesuvius.unet import UNet3d

CPU = torch.device("cpu")


def random_labels(*shape: int) -> torch.Tensor:
    return torch.randint(0, 3, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


# --- the model ------------------------------------------------------------------------------------


def test_logits_are_as_large_as_the_patch_and_coarser_ones_come_while_training() -> None:
    """With deep supervision two levels; one without it, and one when judged."""
    patches = torch.zeros(2, 1, 8, 16, 24)
    model = UNet3d((4, 6, 8, 10))
    assert [tuple(level.shape[2:]) for level in model(patches)] == [(8, 16, 24), (4, 8, 12)]
    assert [tuple(level.shape) for level in model.eval()(patches)] == [(2, 1, 8, 16, 24)]
    assert len(UNet3d((4, 6, 8, 10), deep_supervision=False)(patches)) == 1


def test_every_weight_has_a_gradient() -> None:
    """None is left out of the graph, heads included."""
    model = UNet3d((4, 6, 8))
    dice, entropy = segmentation_losses(model(torch.randn(1, 1, 8, 8, 8)), random_labels(1, 1, 8, 8, 8))
    (dice + entropy).mean().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_notes_patch_fits_the_notes_model() -> None:
    """72 x 136 x 136 halves three times; a side that does not is answered with what does."""
    with torch.device("meta"):
        model = UNet3d((32, 64, 128, 256))
        assert model(torch.empty(1, 1, 72, 136, 136))[0].shape == (1, 1, 72, 136, 136)
    with pytest.raises(UsageError, match="multiple of 8"):
        model(torch.empty(1, 1, 72, 136, 100, device="meta"))


# --- the loss -------------------------------------------------------------------------------------


def test_unlabelled_voxels_have_no_part_in_the_loss() -> None:
    """Whatever is predicted there, loss and gradient are the same."""
    labels = random_labels(2, 1, 4, 4, 4)
    logits = torch.randn(2, 1, 4, 4, 4, requires_grad=True)
    changed = torch.where(labels == UNLABELLED, logits.detach() + 5, logits.detach())
    one, other = segmentation_losses([logits], labels), segmentation_losses([changed], labels)
    for value, again in zip(one, other, strict=True):
        torch.testing.assert_close(value, again)
    (one[0] + one[1]).sum().backward()
    assert logits.grad is not None
    assert (logits.grad[labels == UNLABELLED] == 0).all()
    assert (logits.grad[labels == SHEET] != 0).all()


def test_a_batch_is_the_mean_of_its_samples() -> None:
    """So micro-batches weighted by their samples give the gradient of the whole."""
    labels, logits = random_labels(3, 1, 4, 4, 4), torch.randn(3, 1, 4, 4, 4)
    whole = segmentation_losses([logits], labels)
    parts = [segmentation_losses([logits[at : at + 1]], labels[at : at + 1]) for at in range(3)]
    for name in range(2):
        torch.testing.assert_close(whole[name], torch.cat([part[name] for part in parts]))


def test_a_sample_without_labels_costs_nothing() -> None:
    """Its loss is 0, and finite gradients come of it."""
    logits = torch.randn(1, 1, 4, 4, 4, requires_grad=True)
    dice, entropy = segmentation_losses([logits], torch.full((1, 1, 4, 4, 4), UNLABELLED, dtype=torch.uint8))
    assert (float(dice.detach()), float(entropy.detach())) == (0.0, 0.0)
    (dice + entropy).sum().backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_what_is_right_costs_less() -> None:
    """Certain and right is near 0, certain and wrong far from it."""
    labels = torch.zeros(1, 1, 4, 4, 4, dtype=torch.uint8)
    labels[..., :2] = SHEET
    right = torch.where(labels == SHEET, 20.0, -20.0)
    for part in segmentation_losses([right], labels):
        assert part.item() < 0.01
    for part in segmentation_losses([-right], labels):
        assert part.item() > 0.9


def test_labels_of_a_coarser_level_are_voxels_of_the_finer() -> None:
    """Every second one on each axis."""
    labels = random_labels(1, 1, 4, 6, 8)
    assert torch.equal(shrink_labels(labels, torch.Size((2, 3, 4))), labels[:, :, ::2, ::2, ::2])


# --- the metrics ----------------------------------------------------------------------------------


def test_dice_over_batches_is_that_of_the_whole() -> None:
    """Counted by hand, and without the unlabelled voxels."""
    labels = random_labels(4, 1, 5, 5, 5)
    found = torch.rand(labels.shape, generator=torch.Generator().manual_seed(2)) > 0.5
    metric = Dice()
    metric.update(found[:1], labels[:1])
    metric.update(found[1:], labels[1:])
    known, sheet = labels != UNLABELLED, labels == SHEET
    both = (found & sheet).sum().item()
    assert metric.compute().item() == pytest.approx(2 * both / ((found & known).sum() + sheet.sum()).item())


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 2.0, 2.5])
def test_surface_dice_is_what_distances_between_all_pairs_say(tolerance: float) -> None:
    """Against every surface voxel measured to every other, by numpy."""
    draw = np.random.default_rng(3)
    labels = np.kron(draw.integers(0, 2, (3, 3, 3)), np.ones((3, 3, 3))).astype(np.uint8)
    found = np.roll(labels, 1, axis=2).astype(bool)
    metric = SurfaceDice(tolerance)
    metric.update(torch.from_numpy(found)[None, None], torch.from_numpy(labels)[None, None])
    surfaces = [np.argwhere(_surface_by_hand(mask)) for mask in (found, labels == SHEET)]
    apart = np.linalg.norm(surfaces[0][:, None] - surfaces[1][None], axis=2)
    near = (apart.min(1) <= tolerance).sum() + (apart.min(0) <= tolerance).sum()
    assert metric.compute().item() == pytest.approx(near / (len(surfaces[0]) + len(surfaces[1])))


def _surface_by_hand(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    padded = np.pad(mask, 1, mode="edge")
    middle = (slice(1, -1),) * 3
    inside = mask.copy()
    for axis in range(3):
        for shift in (-1, 1):
            inside &= np.roll(padded, shift, axis)[middle]
    surface: NDArray[np.bool_] = mask & ~inside
    return surface


def test_surfaces_beside_unlabelled_voxels_are_left_out() -> None:
    """A sheet that is right wherever it is labelled has a surface Dice of 1."""
    labels = torch.zeros(1, 1, 8, 8, 8, dtype=torch.uint8)
    labels[:, :, 3:5] = SHEET
    labels[..., 5:] = UNLABELLED
    found = torch.zeros(labels.shape, dtype=torch.bool)
    found[:, :, 3:5] = True
    found[..., 6:] = True
    metric = SurfaceDice(0.0)
    metric.update(found, labels)
    assert metric.compute().item() == 1.0
    assert find_surface(found).any()


def test_nothing_found_where_there_is_nothing_is_right() -> None:
    """Both are 1."""
    nothing = torch.zeros(1, 1, 4, 4, 4, dtype=torch.uint8)
    for metric in (Dice(), SurfaceDice()):
        metric.update(nothing.bool(), nothing)
        assert metric.compute().item() == 1.0


# --- a whole volume -------------------------------------------------------------------------------


class Echo(nn.Module):
    """Gives back as logits what it is given, and counts its calls."""

    def forward(self, patches: torch.Tensor) -> list[torch.Tensor]:
        return [patches]


class Edgy(nn.Module):
    """Right in the middle of a window, wrong at its edges."""

    def forward(self, patches: torch.Tensor) -> list[torch.Tensor]:
        wrong = torch.full_like(patches, 20.0)
        wrong[..., 2:-2, 2:-2, 2:-2] = patches[..., 2:-2, 2:-2, 2:-2]
        return [wrong]


def slide_over(
    model: nn.Module, volume: NDArray[np.uint8], **options: object
) -> tuple[list[int], torch.Tensor]:
    slabs = list(
        slide(
            model, volume, patch=(8, 8, 8), transform=VolumeTransform(flip=0.0, field="image"), device=CPU,
            **options,  # type: ignore[arg-type]
        )
    )  # fmt: skip
    return [start for start, _ in slabs], torch.cat([slab for _, slab in slabs])


@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.7])
def test_a_window_over_a_volume_gives_each_voxel_once(overlap: float) -> None:
    """What says the same in every window comes out as it went in, whatever the sides and the overlap."""
    volume = np.random.default_rng(0).integers(0, 256, (19, 13, 10)).astype(np.uint8)
    starts, chances = slide_over(Echo(), volume, overlap=overlap, batch_size=3)
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    torch.testing.assert_close(chances, torch.sigmoid(torch.from_numpy(volume) / 255))


def test_blending_trusts_the_middle_of_a_window_most() -> None:
    """Errors at the edges of windows nearly vanish where others overlap."""
    volume = np.zeros((24, 24, 24), np.uint8)
    _, chances = slide_over(Edgy(), volume, overlap=0.5)
    assert (chances[6:-6, 6:-6, 6:-6] - 0.5).abs().max() < 0.2
    weight = blending_weight((8, 8, 8))
    assert weight.max() == 1
    assert weight.min() > 0


def test_the_callers_gradients_are_not_turned_off_between_slabs() -> None:
    """A generator's modes are its own."""
    slabs = slide(
        Echo(), np.zeros((16, 8, 8), np.uint8), patch=(8, 8, 8),
        transform=VolumeTransform(flip=0.0, field="image"), device=CPU,
    )  # fmt: skip
    next(slabs)
    assert torch.is_grad_enabled()
    slabs.close()  # type: ignore[attr-defined]


def test_a_prediction_is_written_as_zarr(tmp_path: Path) -> None:
    """Bytes, as many as the volume has voxels; nothing is left of the part."""
    volume = tmp_path / "volume.npy"
    np.save(volume, np.full((12, 8, 8), 255, np.uint8))
    transform = VolumeTransform(flip=0.0, field="image")
    slabs = slide(Echo(), volume, patch=(8, 8, 8), transform=transform, device=CPU)
    path = write_prediction(tmp_path / "found.zarr", volume, slabs)
    found = VolumeSource(path, patch=(12, 8, 8), mode="grid")[0]["image"]
    assert found.unique().tolist() == [round(255 / (1 + np.exp(-1.0)))]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["found.zarr", "volume.npy"]


def test_an_overlap_of_all_is_refused() -> None:
    """The window would never move."""
    with pytest.raises(UsageError, match="overlap is 1"):
        next(
            iter(
                slide(
                    Echo(),
                    np.zeros((8, 8, 8), np.uint8),
                    patch=(8, 8, 8),
                    transform=VolumeTransform(),
                    device=CPU,
                    overlap=1.0,
                )
            )
        )
