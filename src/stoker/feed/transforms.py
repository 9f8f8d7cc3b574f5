"""Random crops, flips and normalising after the cache: on the device, by the batch.

What is random about a sample hangs on (seed, epoch, sample) alone, so that it is the same on every tier, for
every world size and after every resume. Each image's numbers are computed on the host, for the whole batch at
once; then one fused kernel makes the batch where there is a GPU (`transform_kernel`), plain torch elsewhere.

Both are products, sums and gathers, each of which rounds once, in the same way everywhere. So a sample is the
same to the bit in any batch, which no fused operation of torch promises, and the two can be compared.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_flatten, tree_unflatten

from stoker.errors import NotTransformable, UsageError
from stoker.feed.arguments import checked_size
from stoker.feed.crops import Cut, Range, Samples, Size, cut_alike, cut_at_random
from stoker.feed.draws import draw
from stoker.feed.fields import find_images
from stoker.feed.kernels import tried_on

# Goes up with any edit that changes what comes out for the same settings; golden boxes in the tests notice.
VERSION = 1

# One number, or one for each channel.
Values: TypeAlias = float | Sequence[float]

# Values that plain torch works on at a time on a CPU, 3 MB of them: in its cache, and in memory that the
# allocator has at hand. 32 images of 3 x 256 x 256 to 224 x 224 cost one thread 15 ms in pieces of 4 images,
# 41 ms at once, and 25 ms one by one through F.interpolate (the least of 15 each).
_PIECE = 3 << 18
# Gathered as these, since torch gathers no wide type without a sign.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class BatchTransform(ABC):
    """What is done to a batch after the cache, with the numbers of its samples at hand."""

    @property
    @abstractmethod
    def random(self) -> bool:
        """Whether the result hangs on the seed and the epoch."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A text of all settings: equal when the same is done."""

    @abstractmethod
    def __call__(self, batch: Any, *, samples: Samples, seed: int, epoch: int) -> Any:
        """The batch of these samples, transformed; what is no image in it stays as it is."""


def apply(
    transform: BatchTransform | Callable[[Any], Any], batch: Any, samples: Samples, seed: int, epoch: int
) -> Any:
    """Transform a batch, by one of Stoker's transforms or by any function of a batch."""
    if isinstance(transform, BatchTransform):
        return transform(batch, samples=samples, seed=seed, epoch=epoch)
    return transform(batch)


class Kernel(Protocol):
    """What makes new images of a batch: `transform_plainly`, or the fused kernel."""

    def __call__(
        self, images: torch.Tensor, cut: Cut, colour: torch.Tensor, dtype: torch.dtype, channels_last: bool
    ) -> torch.Tensor:
        """The new images, of this type and layout; `colour` has the factors and offsets of the channels."""


@dataclass(frozen=True, kw_only=True)
class ImageTransform(BatchTransform):
    """Crop, resize, flip, normalise and cast a batch of images, (B, C, H, W).

    uint8 images count from 0 to 1 (x / 255); any other type is taken as it is. All is computed in float32.
    Resizing is bilinear without antialias, as `F.interpolate(mode="bilinear", align_corners=False)` does it:
    for images that are cached far larger than `size`, cache them smaller.

    >>> train = ImageTransform(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    >>> batch = {"image": torch.zeros(2, 3, 256, 320, dtype=torch.uint8), "label": torch.tensor([0, 1])}
    >>> train(batch, samples=np.array([70, 3]), seed=0, epoch=1)["image"].shape
    torch.Size([2, 3, 224, 224])

    Args:
        size: of the new images, (height, width) or one number for both; None for that of the old.
        crop: "random" cuts a box of random area, aspect and place and resizes it; "center" cuts `size` from
            the middle; None resizes the whole image.
        scale: the least and greatest area of a random box, as a share of the image's.
        ratio: its least and greatest width over height. They are drawn as torchvision's RandomResizedCrop
            draws them, of which 10 tries that do not fit into the image give a box in the middle.
        flip: the chance that an image is mirrored left to right.
        mean, std: subtracted and divided by, one for each channel or one for all; None for 0 and 1.
        dtype: float32, float16 or bfloat16.
        channels_last: lay the new images out in that memory format.
        field: the images' key, name or place in the batch; None where it has only one tensor of 4 dimensions.
    """

    size: int | Size | None = None
    crop: Literal["random", "center"] | None = "random"
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    flip: float = 0.5
    mean: Values | None = None
    std: Values | None = None
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    field: str | int | None = None

    def __post_init__(self) -> None:
        if self.crop not in ("random", "center", None):
            raise UsageError(f"crop={self.crop!r} is not one of 'random', 'center' and None")
        if self.crop == "center" and self.size is None:
            raise UsageError("crop='center' needs size=: how much of the middle to cut")
        if self.size is not None:
            _store(self, "size", checked_size(self.size))
        _store(self, "scale", _range("scale", self.scale, most=1.0))
        _store(self, "ratio", _range("ratio", self.ratio))
        _store(self, "flip", _chance("flip", self.flip))
        _check_colour(self)

    @property
    def random(self) -> bool:
        """Whether the result hangs on the seed and the epoch."""
        return self.crop == "random" or 0 < self.flip < 1

    def fingerprint(self) -> str:
        """A text of all settings: equal when the same is done."""
        return f"{self!r} {VERSION}"

    def __call__(self, batch: Any, *, samples: Samples, seed: int, epoch: int) -> Any:
        """The batch with its images transformed, everything else in it as it was."""
        images, put = find_images(batch, self.field, ("channels", "height", "width"))
        samples = _check_samples(samples, len(images))
        cut = self.cut(samples, seed, epoch, (images.shape[2], images.shape[3]))
        colour = _colour(self.mean, self.std, images.dtype, images.shape[1], images.device)
        make = _fused(images.device) or transform_plainly
        return put(make(images, cut, colour, self.dtype, self.channels_last))

    def cut(self, samples: Samples, seed: int, epoch: int, source: Size) -> Cut:
        """Where each of these samples, images of this height and width, is cut, and whether it is flipped."""
        size = checked_size(self.size or source)
        if self.crop == "random":
            return cut_at_random(
                samples, seed, epoch,
                source=source, size=size, scale=self.scale, ratio=self.ratio, flip=self.flip,
            )  # fmt: skip
        middle = self.crop == "center"
        return cut_alike(samples, seed, epoch, source=source, size=size, middle=middle, flip=self.flip)


@dataclass(frozen=True, kw_only=True)
class VolumeTransform(BatchTransform):
    """Flip, normalise and cast a batch of patches, (B, C, D, H, W).

    Every tensor of 5 dimensions in the batch is flipped in the same way, so that labels stay with their
    patches; only the patches are normalised (as by ImageTransform) and cast.

    Args:
        flip: the chance that a sample is mirrored along depth, height and width, or one for all three.
        mean, std, dtype: as of ImageTransform.
        field: the patches' key, name or place in the batch; None for the first tensor of 5 dimensions.
    """

    flip: float | tuple[float, float, float] = 0.5
    mean: Values | None = None
    std: Values | None = None
    dtype: torch.dtype = torch.float32
    field: str | int | None = None

    def __post_init__(self) -> None:
        given = self.flip if isinstance(self.flip, Sequence) else (self.flip,) * 3
        if len(given) != 3:
            raise UsageError(
                f"flip={self.flip!r} is neither one chance nor three, for depth, height and width"
            )
        _store(self, "flip", tuple(_chance("flip", chance) for chance in given))
        _check_colour(self)

    @property
    def random(self) -> bool:
        """Whether the result hangs on the seed and the epoch."""
        return any(0 < chance < 1 for chance in np.atleast_1d(self.flip))

    def fingerprint(self) -> str:
        """A text of all settings: equal when the same is done."""
        return f"{self!r} {VERSION}"

    def __call__(self, batch: Any, *, samples: Samples, seed: int, epoch: int) -> Any:
        """The batch with its patches transformed, their labels flipped, everything else in it as it was."""
        patches, _ = find_images(batch, self.field, ("channels", "depth", "height", "width"), first=True)
        samples = _check_samples(samples, len(patches))
        flips = draw(seed=seed, epoch=epoch, samples=samples, count=3) < np.array(self.flip)
        colour = _colour(self.mean, self.std, patches.dtype, patches.shape[1], patches.device)
        leaves, tree = tree_flatten(batch)
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.dim() == 5:
                _check_samples(samples, len(leaf))
                new = _flip(leaf, flips)
                leaves[at] = _normalise(new.float(), colour).to(self.dtype) if leaf is patches else new
        return tree_unflatten(leaves, tree)


def transform_plainly(
    images: torch.Tensor, cut: Cut, colour: torch.Tensor, dtype: torch.dtype, channels_last: bool
) -> torch.Tensor:
    """The new images by plain torch, on any device."""
    shape = (*images.shape[:2], *cut.size)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    new = torch.empty(shape, dtype=dtype, device=images.device, memory_format=layout)
    widest = math.prod(shape[1:3]) * max(images.shape[3], shape[3])
    step = max(1, _PIECE // widest if images.device.type == "cpu" else len(images))
    for start in range(0, len(images), step):
        piece = slice(start, start + step)
        new[piece] = _normalise(_resample(images[piece], cut._replace(table=cut.table[piece])), colour)
    return new


def _resample(images: torch.Tensor, cut: Cut) -> torch.Tensor:
    """The boxes in float32: new rows of all columns first, then of those the new columns."""
    height, width = cut.size
    table = upload(cut.table, images.device)
    top, left, rows, columns, flip, row_step, column_step = table[:, :, None].unbind(1)
    y = torch.arange(height, dtype=torch.float32, device=images.device)
    x = torch.arange(width, dtype=torch.float32, device=images.device)
    x = torch.where(flip > 0, width - 1 - x, x)
    upper, lower, down = _neighbours(y, top, rows, row_step)
    before, after, right = _neighbours(x, left, columns, column_step)
    if not cut.resampled:
        return _take_columns(_take_rows(images, upper), before).float()
    both = _mix(_take_rows(images, upper).float(), _take_rows(images, lower).float(), down[:, None, :, None])
    return _mix(_take_columns(both, before), _take_columns(both, after), right[:, None, None, :])


def _neighbours(
    at: torch.Tensor, start: torch.Tensor, count: torch.Tensor, step: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each new row or column the two of the source that it lies between, and the second one's share."""
    exact = ((at + 0.5) * step - 0.5).clamp_min(0)
    first = exact.floor().minimum(count - 1)
    second = (first + 1).minimum(count - 1)
    return (start + first).long(), (start + second).long(), exact - first


def _take_rows(images: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
    """The rows at these places, (B, n) for each dimension between channels and width: a fast copy."""
    index = torch.arange(math.prod(images.shape[:2]), device=images.device).view(images.shape[:2])
    kind = _SIGNED.get(images.dtype, images.dtype)
    for size, place in zip(images.shape[2:-1], places, strict=True):
        index = index[..., None] * size + place.view(len(place), *(1,) * (index.dim() - 1), -1)
    taken = images.reshape(-1, images.shape[-1]).view(kind).index_select(0, index.flatten())
    return taken.view(images.dtype).view(*index.shape, -1)


def _take_columns(images: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The columns at these places, (B, n)."""
    index = place.view(len(place), *(1,) * (images.dim() - 2), -1)
    kind = _SIGNED.get(images.dtype, images.dtype)
    return images.view(kind).gather(-1, index.expand(*images.shape[:-1], -1)).view(images.dtype)


def _mix(one: torch.Tensor, other: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """In place."""
    return one.mul_(1 - share).add_(other.mul_(share))


def _flip(volumes: torch.Tensor, flips: NDArray[np.bool_]) -> torch.Tensor:
    places = []
    for size, flip in zip(volumes.shape[2:], upload(flips, volumes.device).unbind(1), strict=True):
        at = torch.arange(size, device=volumes.device)
        places.append(torch.where(flip[:, None], size - 1 - at, at))
    return _take_columns(_take_rows(volumes, *places[:-1]), places[-1])


def upload(table: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A small table on the device. From pageable memory the driver has its own copy when this returns."""
    return torch.from_numpy(table).to(device, non_blocking=True)


def _normalise(values: torch.Tensor, colour: torch.Tensor) -> torch.Tensor:
    """In place; a product and a sum for each channel, since a division rounds otherwise on some devices."""
    factor, offset = colour.view(2, 1, -1, *(1,) * (values.dim() - 2)).unbind(0)
    return values.mul_(factor).add_(offset)


@lru_cache(maxsize=64)
def _colour(
    mean: Values | None, std: Values | None, dtype: torch.dtype, channels: int, device: torch.device
) -> torch.Tensor:
    """(2, channels): by what to multiply each channel, and what to add then."""
    for name, given in (("mean", mean), ("std", std)):
        if isinstance(given, tuple) and len(given) != channels:
            raise NotTransformable(
                f"{name} has {len(given)} numbers and the images {channels} channels: give one for each, "
                "or one number for all"
            )
    divisor = np.broadcast_to(np.asarray(1.0 if std is None else std), channels)
    offset = -np.broadcast_to(np.asarray(0.0 if mean is None else mean), channels) / divisor
    unit = 255 if dtype == torch.uint8 else 1
    return torch.from_numpy(np.stack([1 / (unit * divisor), offset]).astype(np.float32)).to(device)


@cache
def _fused(device: torch.device) -> Kernel | None:
    """The fused kernel, where this device runs it; tried once, on one pixel."""
    module = tried_on(device, "transform_kernel", "transforms run as plain torch, more slowly")
    return None if module is None else cast(Kernel, module.transform_fused)


def _check_samples(samples: Samples, count: int) -> Samples:
    samples = np.asarray(samples, dtype=np.int64)
    if samples.shape != (count,):
        raise NotTransformable(
            f"a batch of {count} with the numbers of {samples.shape} samples: give one for each"
        )
    return samples


def _check_colour(transform: ImageTransform | VolumeTransform) -> None:
    for name, given in (("mean", transform.mean), ("std", transform.std)):
        if given is None:
            continue
        values = tuple(float(value) for value in np.atleast_1d(np.asarray(given, dtype=np.float64)))
        if not values or not all(math.isfinite(value) for value in values):
            raise UsageError(f"{name}={given!r}: give one number, or one for each channel")
        if name == "std" and min(values) <= 0:
            raise UsageError(f"std={given!r}: pixels are divided by it, so it must be above 0")
        _store(transform, name, values if np.ndim(given) else values[0])
    if transform.dtype not in _DTYPES:
        raise UsageError(f"dtype={transform.dtype} is not one of {', '.join(map(str, _DTYPES))}")


def _range(name: str, given: Range, most: float = math.inf) -> Range:
    if len(given) != 2 or not 0 < given[0] <= given[1] <= most:
        above = "" if most == math.inf else f", the greatest at most {most:g}"
        raise UsageError(f"{name}={given!r}: give the least and the greatest, above 0{above}")
    return float(given[0]), float(given[1])


def _chance(name: str, given: float) -> float:
    if not 0 <= given <= 1:
        raise UsageError(f"{name}={given!r} is no chance: give a number from 0 to 1")
    return float(given)


def _store(transform: ImageTransform | VolumeTransform, name: str, value: Any) -> None:
    """In __post_init__: settings that mean the same are kept the same, and give one fingerprint."""
    object.__setattr__(transform, name, value)
