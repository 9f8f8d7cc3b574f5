"""The fused kernel against plain torch, on a GPU."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stoker.feed import transforms
from stoker.feed.transforms import ImageTransform, transform_plainly

pytestmark = pytest.mark.gpu

CUTS: tuple[dict[str, Any], ...] = (
    {"size": (31, 29)},
    {"size": (97, 113)},
    {"size": 1},
    {"size": None},
    {"size": (21, 22), "crop": "center"},
    {"size": (13, 40), "crop": None},
    {"size": None, "crop": None},
)


def images_of(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)).cuda()
    return values if dtype == torch.uint8 else (values / 255).to(dtype)


def both(transform: ImageTransform, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's and plain torch's, of the same samples."""
    samples = np.arange(500, 500 + len(images))
    colour = transforms._colour(transform.mean, transform.std, images.dtype, images.shape[1], images.device)
    cut = transform.cut(samples, 1, 2, (images.shape[2], images.shape[3]))
    plain = transform_plainly(images, cut, colour, transform.dtype, transform.channels_last)
    return transform(images, samples=samples, seed=1, epoch=2), plain


def test_the_kernel_is_what_a_gpu_gets() -> None:
    """Where triton is, it is built and chosen."""
    kernel = pytest.importorskip("stoker.feed.transform_kernel", exc_type=ImportError)
    assert transforms._fused(torch.zeros(1, device="cuda").device) is kernel.transform_fused


@pytest.mark.parametrize("source", [torch.uint8, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", CUTS, ids=str)
def test_the_kernel_agrees_with_plain_torch(
    settings: dict[str, Any], channels: int, source: torch.dtype
) -> None:
    """On odd sizes, from and to both memory formats, to each type: to a step of that type, or 1e-5."""
    std = 0.25
    packed = images_of((5, channels, 37, 53), source)
    for images in (packed, packed.contiguous(memory_format=torch.channels_last), packed[:, :, 3:, 1:-1]):
        for dtype, last in itertools.product((torch.float32, torch.float16, torch.bfloat16), (False, True)):
            transform = ImageTransform(mean=0.4, std=std, dtype=dtype, channels_last=last, **settings)
            fused, plain = both(transform, images)
            assert (fused.shape, fused.dtype) == (plain.shape, dtype)
            layout = torch.channels_last if last else torch.contiguous_format
            assert fused.is_contiguous(memory_format=layout)
            step = torch.finfo(dtype).eps
            torch.testing.assert_close(fused.float(), plain.float(), rtol=step, atol=max(1e-5, step / std))


def test_a_sample_is_the_same_to_the_bit_in_any_batch() -> None:
    """In a batch of 64, and alone."""
    transform = ImageTransform(size=(24, 37), mean=(0.4, 0.5, 0.6), std=0.2)
    images, samples = images_of((64, 3, 50, 66), torch.uint8), np.arange(64)
    whole = transform(images, samples=samples, seed=3, epoch=9)
    alone = [transform(images[n : n + 1], samples=samples[n : n + 1], seed=3, epoch=9) for n in range(64)]
    assert torch.equal(whole, torch.cat(alone))


def test_the_cpu_gives_the_same_as_the_gpu() -> None:
    """A run moved to a machine without one sees the same boxes, flips and values."""
    transform = ImageTransform(size=(24, 37), mean=(0.4, 0.5, 0.6), std=0.2)
    images, samples = images_of((8, 3, 50, 66), torch.uint8), np.arange(8)
    here = transform(images, samples=samples, seed=3, epoch=9)
    there = transform(images.cpu(), samples=samples, seed=3, epoch=9)
    torch.testing.assert_close(here.cpu(), there, rtol=0, atol=1e-5)
    print(f"\nCPU and GPU equal to the bit: {torch.equal(here.cpu(), there)}")


def test_an_empty_batch_stays_one() -> None:
    """No program is launched for it."""
    new = ImageTransform(size=9)(
        images_of((0, 3, 20, 20), torch.uint8), samples=np.arange(0), seed=0, epoch=0
    )
    assert new.shape == (0, 3, 9, 9)


def test_offsets_beyond_32_bits() -> None:
    """The last image of a batch of more than 2**31 pixels is its own."""
    images = torch.zeros((3, 1, 27_000, 27_000), dtype=torch.uint8, device="cuda")
    images[2] = 255
    new = ImageTransform(size=16, flip=0)(images, samples=np.arange(3), seed=0, epoch=0)
    assert torch.equal(new.amax((1, 2, 3)).cpu(), torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_how_long_a_batch_takes(last: bool) -> None:
    """256 images of 3 x 256 x 256 to 224 x 224 in bfloat16, by each: printed, not asserted."""
    transform = ImageTransform(size=224, mean=0.4, std=0.2, dtype=torch.bfloat16, channels_last=last)
    images, samples = images_of((256, 3, 256, 256), torch.uint8), np.arange(256)
    cut = transform.cut(samples, 1, 2, (256, 256))
    colour = transforms._colour(transform.mean, transform.std, images.dtype, 3, images.device)
    moved = images.nbytes + 256 * 3 * 224 * 224 * 2
    for name, make in (("fused", transforms._fused(images.device)), ("plain", transform_plainly)):
        assert make is not None
        took = milliseconds(lambda make=make: make(images, cut, colour, torch.bfloat16, last))  # type: ignore[misc]
        print(f"\n{name}: {took:.3f} ms, {moved / took / 1e6:.0f} GB/s of source and result")
    fused, plain = both(transform, images)
    assert torch.isfinite(fused).all()
    assert (fused - plain).abs().max() <= 1 / 255 / 0.2


def milliseconds(work: Callable[[], Any], times: int = 50) -> float:
    """The median time of the device for it."""
    for _ in range(5):
        work()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)
    ]
    for start, end in pairs:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in pairs]))
