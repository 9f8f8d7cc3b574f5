"""The SAR autoencoders and what they are judged by."""

import pytest
import torch

from stoker.errors import UsageError
from stoker.workloads.sar.models import (
    MODELS,
    AttentionAutoencoder,
    ModelName,
    ResidualAutoencoder,
    ResNetLite,
)
from stoker.workloads.sar.similarity import ReconstructionLoss, _window, structural_similarity


@pytest.mark.parametrize(
    ("model", "base", "millions"),
    [(ResNetLite, 32, "5.6"), (ResidualAutoencoder, 32, "5.99"), (ResidualAutoencoder, 64, "23.8")],
)
def test_sizes_are_the_notes(model: type[ResNetLite], base: int, millions: str) -> None:
    """As many parameters as the field notes say, to the digits that they give."""
    with torch.device("meta"):
        made = model(base=base)
    count = sum(weight.numel() for weight in made.parameters()) / 1e6
    assert f"{count:.{len(millions.partition('.')[2])}f}" == millions


def test_attention_adds_little() -> None:
    """CBAM's weights are under 2% of the model."""
    with torch.device("meta"):
        counts = [
            sum(w.numel() for w in model().parameters())
            for model in (ResidualAutoencoder, AttentionAutoencoder)
        ]
    assert counts[0] < counts[1] < 1.02 * counts[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_patch_goes_to_a_small_code_and_back(name: ModelName) -> None:
    """16 channels at a sixteenth of the size; what comes back lies between 0 and 1; all weights learn."""
    # Of other seeds, one in twelve begins with a channel attention whose four inner values are all below 0.
    torch.manual_seed(0)
    model = MODELS[name](base=8)
    patches = torch.rand(2, 1, 64, 48)
    assert model.encode(patches).shape == (2, 16, 4, 3)
    rebuilt = model(patches)
    assert rebuilt.shape == patches.shape
    assert 0 <= rebuilt.min() < rebuilt.max() <= 1
    rebuilt.mean().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_hangs_on_no_other(name: ModelName) -> None:
    """In training too: so micro-batches and ranks leave the maths as it is."""
    torch.manual_seed(0)
    model = MODELS[name](base=8).train()
    patches = torch.rand(3, 1, 32, 32)
    together = model(patches)
    alone = torch.cat([model(patch[None]) for patch in patches])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_sizes_that_cannot_be_are_told() -> None:
    """Sides that 16 does not divide, and bases that groups do not."""
    with pytest.raises(UsageError, match="patches of 40x64: give sides that 16 divides"):
        ResNetLite(base=8)(torch.rand(1, 1, 40, 64))
    with pytest.raises(UsageError, match="base 12"):
        ResNetLite(base=12)


def test_similarity_is_what_torchmetrics_says() -> None:
    """To five digits, and one number for each image."""
    from torchmetrics.image import StructuralSimilarityIndexMeasure

    torch.manual_seed(0)
    one = torch.rand(4, 1, 40, 33)
    other = (one + 0.2 * torch.randn_like(one)).clamp(0, 1)
    ours = structural_similarity(one, other)
    theirs = StructuralSimilarityIndexMeasure(data_range=1.0)(other, one)
    assert ours.shape == (4,)
    torch.testing.assert_close(ours.mean(), theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(structural_similarity(one, one), torch.ones(4))


def test_similarity_is_float32_under_autocast() -> None:
    """Its variances are differences of nearly equal numbers, which bfloat16 loses."""
    one, other = torch.rand(2, 1, 32, 32), torch.rand(2, 1, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = structural_similarity(one, other)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, structural_similarity(one, other))


def test_a_first_call_in_inference_mode_harms_no_later_one() -> None:
    """A validation may come before the first step: the window that it made trains, too."""
    _window.cache_clear()
    patches = torch.rand(1, 1, 16, 16)
    with torch.inference_mode():
        structural_similarity(patches, patches)
    rebuilt = torch.rand(1, 1, 16, 16, requires_grad=True)
    structural_similarity(rebuilt, patches).sum().backward()
    assert rebuilt.grad is not None
    assert rebuilt.grad.abs().sum() > 0


def test_the_loss_is_the_notes() -> None:
    """PSNR 19.26 dB and SSIM 0.487 make 0.162, as the field note's first epoch had it."""
    loss = ReconstructionLoss()
    assert round(loss.mse * 10 ** (-19.26 / 10) + loss.ssim * (1 - 0.487), 3) == 0.162
    patches = torch.rand(2, 1, 32, 32)
    parts = loss(torch.full_like(patches, 0.5), patches)
    expected = 0.7 * parts["mse"] + 0.3 * (1 - parts["ssim"])
    torch.testing.assert_close(parts["loss"], expected)
    with pytest.raises(UsageError, match="not both 0"):
        ReconstructionLoss(mse=0, ssim=0)
