"""Where each image of a batch is cut: boxes and flips, drawn on the host for the whole batch at once.

They are drawn as torchvision's RandomResizedCrop draws them, but from numbers that hang on (seed, epoch,
sample) alone. The maths is NumPy's on any machine; no device sees more of it than the table.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import NotTransformable
from stoker.feed.draws import draw

# As many as torchvision makes before it takes the middle.
TRIES = 10
# A sample's random numbers by place: whether it flips, where the box lies, then for each try area and aspect.
_FLIP, _TOP, _LEFT, _TRIED = 0, 1, 2, 3

Samples: TypeAlias = NDArray[np.int64]
# Height and width, in pixels.
Size: TypeAlias = tuple[int, int]
# The least and the greatest.
Range: TypeAlias = tuple[float, float]


class Cut(NamedTuple):
    """From where the pixels of a batch come."""

    # (B, 7): top, left, height and width of the box, 1 to flip, rows and columns for a new pixel. All of one
    # type, for one small copy to the device; float32 counts to 16 million exactly.
    table: NDArray[np.float32]
    size: Size
    # False where every pixel is one of the source's, which then is taken as it is.
    resampled: bool


def cut_at_random(
    samples: Samples,
    seed: int,
    epoch: int,
    *,
    source: Size,
    size: Size,
    scale: Range,
    ratio: Range,
    flip: float,
) -> Cut:
    """A box of random area, aspect and place from each sample, an image of the size `source`."""
    drawn = draw(seed=seed, epoch=epoch, samples=samples, count=_TRIED + 2 * TRIES)
    sizes, fitted = _fit(drawn[:, _TRIED:], source, scale, ratio)
    room = np.array(source) - sizes
    corners = np.floor(drawn[:, _TOP : _LEFT + 1] * (room + 1))
    corners[~fitted] = room[~fitted] // 2
    boxes = np.concatenate([corners, sizes], axis=1)
    return _cut(boxes, drawn[:, _FLIP] < flip, size, resampled=True)


def cut_alike(
    samples: Samples, seed: int, epoch: int, *, source: Size, size: Size, middle: bool, flip: float
) -> Cut:
    """The same box from each sample: `size` from the middle, or the whole image, resized where it must be."""
    boxes = np.empty((len(samples), 4))
    boxes[:] = _middle(source, size) if middle else (0, 0, *source)
    flips = draw(seed=seed, epoch=epoch, samples=samples)[:, _FLIP] < flip
    return _cut(boxes, flips, size, resampled=not middle and size != source)


def _cut(boxes: NDArray[np.float64], flips: NDArray[np.bool_], size: Size, *, resampled: bool) -> Cut:
    table = np.empty((len(boxes), 7), np.float32)
    table[:, :4] = boxes
    table[:, 4] = flips
    table[:, 5:] = table[:, 2:4] / np.array(size, np.float32)
    return Cut(table, size, resampled)


def _fit(
    tries: NDArray[np.float64],
    source: Size,
    scale: Range,
    ratio: Range,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Height and width by each sample's first try that fits, else the fallback's; and whether one fitted."""
    height, width = source
    areas = height * width * (scale[0] + (scale[1] - scale[0]) * tries[:, ::2])
    least, greatest = math.log(ratio[0]), math.log(ratio[1])
    aspects = np.exp(least + (greatest - least) * tries[:, 1::2])
    heights, widths = np.rint(np.sqrt(areas / aspects)), np.rint(np.sqrt(areas * aspects))
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    rows, first = np.arange(len(tries)), fits.argmax(axis=1)
    fitted = fits[rows, first]
    sizes = np.stack([heights[rows, first], widths[rows, first]], axis=1)
    sizes[~fitted] = _fallback(source, ratio)
    return sizes, fitted


def _fallback(source: Size, ratio: Range) -> Size:
    """Height and width of the box in the middle: as much of the image as the aspects allow."""
    height, width = source
    if width < ratio[0] * height:
        return max(1, round(width / ratio[0])), width
    if width > ratio[1] * height:
        return height, max(1, round(height * ratio[1]))
    return source


def _middle(source: Size, size: Size) -> tuple[int, int, int, int]:
    if size[0] > source[0] or size[1] > source[1]:
        raise NotTransformable(
            f"the images are {source[0]}x{source[1]}, too small for a middle of {size[0]}x{size[1]}: "
            "give a smaller size, or crop=None to resize them"
        )
    return round((source[0] - size[0]) / 2), round((source[1] - size[1]) / 2), *size
