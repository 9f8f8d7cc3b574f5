"""Transforms after the cache: what comes out, and that it hangs on seed, epoch and sample alone."""

import pickle
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional

from feed.chances import deviation
from stoker.errors import NotTransformable, UsageError
from stoker.feed import crops, transforms
from stoker.feed.crops import cut_at_random
from stoker.feed.draws import draw
from stoker.feed.transforms import ImageTransform, VolumeTransform, apply

# top, left, height, width, flip
GOLDEN = [[30, 21, 173, 145, 1], [40, 76, 178, 203, 1], [4, 16, 244, 249, 0]]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images_of(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    return values if dtype == torch.uint8 else (values / 255).to(dtype)


def transform_one(transform: ImageTransform, image: torch.Tensor, sample: int) -> torch.Tensor:
    """What ImageTransform is said to do, image by image: cut, F.interpolate, flip, normalise."""
    source = (image.shape[1], image.shape[2])
    cut = transform.cut(np.array([sample]), seed=5, epoch=2, source=source)
    top, left, height, width, flip = (int(value) for value in cut.table[0, :5])
    box = image[None, :, top : top + height, left : left + width].double()
    box = functional.interpolate(box, size=cut.size, mode="bilinear", align_corners=False)[0]
    box = box.flip(-1) if flip else box
    channels = len(image)
    mean = torch.tensor(transform.mean or 0.0).double().expand(channels)[:, None, None]
    std = torch.tensor(transform.std or 1.0).double().expand(channels)[:, None, None]
    return (box / (255 if image.dtype == torch.uint8 else 1) - mean) / std


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "transform",
    [
        ImageTransform(size=32, mean=MEAN, std=STD),
        ImageTransform(size=(17, 90), mean=0.5),
        ImageTransform(mean=MEAN, std=0.25),
        ImageTransform(size=(40, 31), crop="center"),
        ImageTransform(size=(40, 31), crop=None, std=STD),
        ImageTransform(crop=None, flip=0),
        ImageTransform(size=1, scale=(0.01, 0.02)),
    ],
    ids=lambda transform: f"{transform.crop}-{transform.size}",
)
def test_a_batch_is_what_images_one_by_one_would_be(transform: ImageTransform, dtype: torch.dtype) -> None:
    """Cut, resized bilinearly, flipped and normalised as plain calls of torch do it for each."""
    images = images_of((9, 3, 47, 61), dtype)
    samples = np.arange(100, 109)
    expected = torch.stack([transform_one(transform, image, 100 + n) for n, image in enumerate(images)])
    actual = transform(images, samples=samples, seed=5, epoch=2)
    assert actual.dtype == torch.float32
    # Float32 knows a place in 61 columns to 4e-6, so a value to that times a neighbour's distance over std.
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-4)


def test_a_crop_without_resizing_is_exact() -> None:
    """The pixels themselves, even where a neighbour is no number."""
    images = images_of((4, 2, 9, 12), torch.float32)
    images[:, :, :, ::3] = torch.nan
    actual = ImageTransform(size=(5, 6), crop="center", flip=0)(images, samples=np.arange(4), seed=0, epoch=0)
    assert torch.equal(images[:, :, 2:7, 3:9].nan_to_num(7), actual.nan_to_num(7))


@pytest.mark.parametrize(
    "transform",
    [
        ImageTransform(size=(24, 37), mean=MEAN, std=STD),
        ImageTransform(size=(24, 37), mean=MEAN, std=STD, dtype=torch.bfloat16, channels_last=True),
        ImageTransform(size=33, crop=None),
    ],
    ids=["plain", "bfloat16", "resized"],
)
def test_a_sample_is_the_same_to_the_bit_in_any_batch(transform: ImageTransform) -> None:
    """In a batch of 64, alone, in another order, in another memory format, and in pieces of any size."""
    images, samples = images_of((64, 3, 50, 66)), np.arange(1000, 1064)
    whole = transform(images, samples=samples, seed=3, epoch=9)
    alone = [transform(images[n : n + 1], samples=samples[n : n + 1], seed=3, epoch=9) for n in range(64)]
    assert torch.equal(whole, torch.cat(alone))
    order = np.random.default_rng(1).permutation(64)
    shuffled = transform(images[order], samples=samples[order], seed=3, epoch=9)
    assert torch.equal(whole[order], shuffled)
    laid_out = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(whole, transform(laid_out, samples=samples, seed=3, epoch=9))


def test_large_batches_are_worked_on_in_pieces_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the size of a piece changes nothing."""
    images, transform = images_of((7, 1, 20, 20)), ImageTransform(size=16)
    whole = transform(images, samples=np.arange(7), seed=0, epoch=0)
    for values in (1, 700):
        monkeypatch.setattr(transforms, "_PIECE", values)
        assert torch.equal(whole, transform(images, samples=np.arange(7), seed=0, epoch=0))


def test_another_seed_or_epoch_gives_another_cut() -> None:
    """And the same ones the same."""
    transform, samples = ImageTransform(size=8), np.arange(50)
    first = transform.cut(samples, 0, 0, (64, 64)).table
    assert (first == transform.cut(samples, 0, 0, (64, 64)).table).all()
    for seed, epoch in ((1, 0), (0, 1)):
        other = transform.cut(samples, seed, epoch, (64, 64)).table
        assert (first[:, :4] != other[:, :4]).any(axis=1).mean() > 0.9


def test_golden_boxes() -> None:
    """What is drawn never changes within a version: the augmentation of old runs hangs on it."""
    table = ImageTransform(size=224).cut(np.array([0, 7, 696_277]), seed=3, epoch=2, source=(256, 320)).table
    assert table[:, :5].tolist() == GOLDEN
    assert transforms.VERSION == 1


def test_areas_aspects_places_and_flips_are_drawn_evenly() -> None:
    """As RandomResizedCrop's: area, log of aspect, and the place of a box within what room it has."""
    source = (100_000, 100_000)  # so large that no box is cut to whole pixels, and with none rejected
    cut = cut_at_random(
        np.arange(20_000), 1, 0, source=source, size=(8, 8), scale=(0.1, 0.5), ratio=(0.5, 2.0), flip=0.3
    )
    top, left, height, width = cut.table[:, :4].astype(np.float64).T
    for values, span in (
        (height * width / 1e10, (0.1, 0.5)),
        (np.log(width / height), (-np.log(2), np.log(2))),
        (top / (1e5 - height), (0, 1)),
        (left / (1e5 - width), (0, 1)),
    ):
        assert values.min() > span[0] - 1e-3
        assert values.max() < span[1] + 1e-3
        assert deviation(np.histogram(values, bins=50, range=span)[0]) < 4
    flips = np.bincount(cut.table[:, 4].astype(int))
    assert deviation(flips, np.array([14_000.0, 6_000.0])) < 4


def test_boxes_lie_inside_and_reach_every_edge() -> None:
    """Whatever the shape; a box is at least one pixel."""
    for source in ((1, 1), (2, 3), (13, 5), (64, 48)):
        table = ImageTransform(size=4).cut(np.arange(5_000), 0, 0, source).table.astype(int)
        top, left, height, width = table[:, :4].T
        assert top.min() == left.min() == 0
        assert min(height.min(), width.min()) >= 1
        assert ((top + height).max(), (left + width).max()) == source


@pytest.mark.parametrize(
    ("source", "box"),
    [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10)), ((1000, 1000), (0, 0, 1000, 1000))],
)
def test_when_no_try_fits_the_middle_is_cut(source: tuple[int, int], box: tuple[int, ...]) -> None:
    """As much of it as the aspects allow; a box of the whole area hardly ever fits in any other way."""
    boxes = cut_at_random(
        np.arange(200), 0, 0, source=source, size=(4, 4), scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3), flip=0
    ).table[:, :4]
    assert (boxes == box).all(axis=1).mean() > 0.9


def test_later_tries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample whose first try does not fit takes its next that does, and only then the middle."""
    transform, samples = ImageTransform(size=4, scale=(0.9, 1.0)), np.arange(2_000)
    after_ten = transform.cut(samples, 0, 0, (64, 64)).table
    monkeypatch.setattr(crops, "TRIES", 1)
    after_one = transform.cut(samples, 0, 0, (64, 64)).table
    whole = (after_one[:, 2:4] == 64).all(axis=1)
    assert (after_ten[~whole] == after_one[~whole]).all()
    assert (after_ten[whole, 2:4] != 64).any(axis=1).sum() > 500


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


@pytest.mark.parametrize("field", [None, "own"])
def test_images_are_found_in_any_batch(field: str | None) -> None:
    """In a tensor, dict, tuple, list or named tuple; the rest is handed on and the batch left alone."""
    images, label = images_of((2, 3, 8, 8)), torch.tensor([4, 5])
    expected = ImageTransform(size=4)(images, samples=np.arange(2), seed=0, epoch=0)
    for batch, at in (
        ({"label": label, "image": images}, "image"),
        ((images, label), 0),
        ([label, images], 1),
        (Pair(images, label), "image"),
    ):
        kept = images.clone()
        transform = ImageTransform(size=4, field=None if field is None else at)
        new: Any = transform(batch, samples=np.arange(2), seed=0, epoch=0)
        assert type(new) is type(batch)
        parts = list(new.values()) if isinstance(new, dict) else list(new)
        assert any(part is label for part in parts)
        assert any(torch.equal(expected, part) for part in parts if part.dim() == 4)
        assert torch.equal(images, kept)


def test_images_deep_in_a_batch_are_found_by_their_shape() -> None:
    """A nested tree keeps its form."""
    batch = {"views": [{"image": images_of((2, 1, 8, 8)), "text": ["a", "b"]}], "label": torch.zeros(2)}
    new = ImageTransform(size=4)(batch, samples=np.arange(2), seed=0, epoch=0)
    assert new["views"][0]["image"].shape == (2, 1, 4, 4)
    assert new["views"][0]["text"] == ["a", "b"]


@pytest.mark.parametrize(
    ("batch", "settings", "told"),
    [
        ({"x": torch.zeros(2, 3)}, {}, r"no tensor of 4 dimensions.*'x'\] float32\[2, 3\].*field="),
        ((torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)), {}, "more than one tensor of 4 dim.*field="),
        ({"x": torch.zeros(2, 1, 4, 4)}, {"field": "image"}, r"no field 'image'.*'x'\]"),
        ({"x": ["a", "b"]}, {"field": "x"}, "is a list, not a tensor"),
        (torch.zeros(2, 4, 4), {}, r"the shape \[2, 4, 4\]; it must be \(samples, channels, height, width\)"),
        (torch.zeros(2, 1, 0, 4), {}, "none of them 0"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.bool), {}, "torch.bool: give uint8"),
        (torch.zeros(2, 1, 4, 4), {"mean": MEAN}, "mean has 3 numbers and the images 1 channels"),
        (torch.zeros(2, 1, 4, 4), {"size": 5, "crop": "center"}, "4x4, too small for a middle of 5x5.*crop="),
        (torch.zeros(3, 1, 4, 4), {}, r"a batch of 3 with the numbers of \(2,\) samples"),
        ("text", {}, "no tensor of 4 dimensions.*str"),
    ],
)
def test_a_batch_that_cannot_be_transformed_is_told(batch: Any, settings: Any, told: str) -> None:
    """With what it has, and what to do."""
    with pytest.raises(NotTransformable, match=told):
        ImageTransform(**settings)(batch, samples=np.arange(2), seed=0, epoch=0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"crop": "middle"}, "'middle' is not one of 'random', 'center' and None"),
        ({"crop": "center"}, "needs size="),
        ({"size": 0}, "size=0"),
        ({"size": (3, 4, 5)}, "height and width"),
        ({"size": 2.5}, "size=2.5"),
        ({"scale": (0.5, 1.5)}, r"scale=\(0.5, 1.5\).*at most 1"),
        ({"ratio": (2, 1)}, r"ratio=\(2, 1\)"),
        ({"flip": 2}, "flip=2 is no chance"),
        ({"std": (1, 0, 1)}, "must be above 0"),
        ({"mean": float("nan")}, "mean=nan"),
        ({"dtype": torch.int32}, "torch.int32 is not one of torch.float32"),
    ],
)
def test_settings_that_cannot_be_are_told(settings: Any, told: str) -> None:
    """At once, with the value."""
    with pytest.raises(UsageError, match=told):
        ImageTransform(**settings)


def test_a_transform_says_whether_it_is_random() -> None:
    """One that always or never flips is not."""
    assert ImageTransform().random
    assert ImageTransform(crop=None).random
    assert not ImageTransform(crop=None, flip=0).random
    assert not ImageTransform(size=4, crop="center", flip=1).random
    assert VolumeTransform().random
    assert VolumeTransform(flip=(0, 0, 0.1)).random
    assert not VolumeTransform(flip=(0, 1, 0)).random


def test_a_fingerprint_tells_settings_apart() -> None:
    """And is one for settings that mean the same, in any process."""
    same = [ImageTransform(size=8, mean=[0, 1]), ImageTransform(size=(8, 8), mean=(0.0, 1.0))]
    others = [
        ImageTransform(size=8), ImageTransform(size=8, flip=0.4), ImageTransform(size=8, dtype=torch.float16),
        VolumeTransform(),
    ]  # fmt: skip
    assert same[0].fingerprint() == same[1].fingerprint() == pickle.loads(pickle.dumps(same[0])).fingerprint()
    assert len({one.fingerprint() for one in [same[0], *others]}) == 5
    assert same[0] == same[1]
    assert VolumeTransform(flip=0.5).fingerprint() == (
        "VolumeTransform(flip=(0.5, 0.5, 0.5), mean=None, std=None, dtype=torch.float32, field=None) 1"
    )


def test_the_memory_format_is_what_was_asked_for() -> None:
    """Of the values in either, which are the same."""
    images = images_of((3, 3, 20, 20))
    first, last = (
        ImageTransform(size=9, channels_last=asked)(images, samples=np.arange(3), seed=0, epoch=0)
        for asked in (False, True)
    )
    assert first.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(first, last)


def test_an_empty_batch_stays_one() -> None:
    """The last of an epoch may be."""
    new = ImageTransform(size=9)(images_of((0, 3, 20, 20)), samples=np.arange(0), seed=0, epoch=0)
    assert new.shape == (0, 3, 9, 9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.float32])
def test_patches_are_flipped_with_their_labels(dtype: torch.dtype) -> None:
    """Along each axis by its own draw; the labels keep their type, the patches are normalised."""
    patches = images_of((16, 2, 3, 5, 7)).to(dtype)
    labels = images_of((16, 1, 3, 5, 7)) > 99
    batch = {"image": patches, "label": labels, "name": ["a"] * 16}
    new = VolumeTransform(mean=(1, 2), std=4)(batch, samples=np.arange(16), seed=0, epoch=0)
    flips = draw(seed=0, epoch=0, samples=np.arange(16), count=3) < 0.5
    assert len(np.unique(flips, axis=0)) > 4
    unit = 255 if dtype == torch.uint8 else 1
    for n in range(16):
        axes = [1 + axis for axis in range(3) if flips[n, axis]]
        expected = (patches[n].float() / unit - torch.tensor([1.0, 2.0])[:, None, None, None]) / 4
        torch.testing.assert_close(new["image"][n], expected.flip(axes))
        assert torch.equal(new["label"][n], labels[n].flip(axes))
    assert new["name"] == ["a"] * 16
    alone = VolumeTransform(mean=(1, 2), std=4)(patches[3:4], samples=np.array([3]), seed=0, epoch=0)
    assert torch.equal(new["image"][3:4], alone)


def test_volumes_that_cannot_be_flipped_are_told() -> None:
    """Flips of no chance, labels of another number of samples."""
    with pytest.raises(UsageError, match="neither one chance nor three"):
        VolumeTransform(flip=(0.5, 0.5))  # type: ignore[arg-type]
    batch = (torch.zeros(2, 1, 3, 3, 3), torch.zeros(3, 1, 3, 3, 3))
    with pytest.raises(NotTransformable, match="a batch of 3"):
        VolumeTransform()(batch, samples=np.arange(2), seed=0, epoch=0)


def test_any_function_of_a_batch_will_do() -> None:
    """Stoker's get the samples' numbers, others the batch alone."""
    images, samples = images_of((2, 1, 8, 8)), np.array([8, 9])
    ours = ImageTransform(size=4)
    assert torch.equal(apply(ours, images, samples, 1, 2), ours(images, samples=samples, seed=1, epoch=2))
    assert torch.equal(apply(torch.Tensor.float, images, samples, 1, 2), images.float())


def test_a_kernel_that_cannot_be_built_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one warning that says why; where triton is not installed, without any."""

    def try_on(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler")

    choose = transforms._fused.__wrapped__
    monkeypatch.setattr("stoker.feed.kernels.find_spec", lambda name: None)
    assert choose(torch.device("cuda", 0)) is None
    monkeypatch.setattr("stoker.feed.kernels.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "stoker.feed.transform_kernel", SimpleNamespace(try_on=try_on))
    monkeypatch.setattr(
        "stoker.feed.transform_kernel", sys.modules["stoker.feed.transform_kernel"], raising=False
    )
    with pytest.warns(RuntimeWarning, match="Failed to find C compiler.*plain torch"):
        assert choose(torch.device("cuda", 0)) is None
    assert choose(torch.device("cpu")) is None
