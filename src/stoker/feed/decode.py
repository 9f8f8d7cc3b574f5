"""JPEG and PNG bytes to pixels: libjpeg-turbo on CPU threads, nvJPEG by the batch on a GPU.

Pixels are RGB, 8 bits a channel. Grey, palette and CMYK images become RGB, 16-bit ones keep their upper 8
bits, and an alpha channel is dropped. Orientation tags (EXIF) are not applied, as in torchvision's
ImageFolder: labels and boxes of the usual sets were made without them.

What an image decodes to depends on the decoder (`decoder_name`): libjpeg-turbo's, Pillow's and nvJPEG's
pixels differ by a few levels, so one run keeps to one of them.
"""

import importlib.util
import io
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from stoker.errors import MissingExtra, SourceBroken, UsageError

Pixels: TypeAlias = NDArray[np.uint8]
Size: TypeAlias = tuple[int, int]
# A file's bytes, wherever they lie.
Data: TypeAlias = bytes | memoryview

# Images that are scaled at once, as floats: 56 of 500 x 375, one photograph of 12 megapixels.
_FITTED_BYTES = 128 << 20
_JPEG = b"\xff\xd8\xff"
# How libjpeg-turbo's words for missing or wrong picture data begin.
_DAMAGE = ("Premature end", "Corrupt JPEG data")


def decoder_name() -> str:
    """What decodes JPEG on the CPU here."""
    return "simplejpeg" if importlib.util.find_spec("simplejpeg") is not None else "pillow"


def decode(data: Data, size: Size | None = None) -> torch.Tensor:
    """One image as [3, height, width]; with a size, scaled to cover it and cut to its middle.

    ValueError for what is no whole image.
    """
    pixels = _decode_jpeg(data, size) if data[:3] == _JPEG else _decode_other(data)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    return image if size is None else fit(image, size)


def fit(image: torch.Tensor, size: Size) -> torch.Tensor:
    """Scale [3, height, width] so that it covers `size`, and cut what stands over, the same on both sides.

    Or several of one size, [n, 3, height, width].
    """
    height, width = image.shape[-2:]
    scale = max(size[0] / height, size[1] / width)
    tall, wide = min(height, round(size[0] / scale)), min(width, round(size[1] / scale))
    top, left = (height - tall) // 2, (width - wide) // 2
    cut = image[..., top : top + tall, left : left + wide]
    if (tall, wide) == size:
        return cut
    several = cut if cut.ndim == 4 else cut[None]
    if cut.is_cuda:  # where torch scales floats alone
        floats = interpolate(several.float(), size=size, mode="bilinear", antialias=True)
        scaled = floats.round_().clamp_(0, 255).to(torch.uint8)
    else:
        # 8-bit pixels as they lie, side by side: 0.18 ms for 224x224, where Pillow takes 0.62 with its
        # copies. Cut by numpy: torch's own copy starts a team of threads that spin, in every thread it is
        # called from (seen: 3 to 6 ms of CPU time an image instead of 1.2).
        pixels = torch.from_numpy(np.ascontiguousarray(several.permute(0, 2, 3, 1).numpy()))
        scaled = interpolate(pixels.permute(0, 3, 1, 2), size=size, mode="bilinear", antialias=True)
    return scaled if cut.ndim == 4 else scaled[0]


def decode_batch(
    images: Sequence[Data], device: torch.device | str = "cpu", size: Size | None = None
) -> torch.Tensor:
    """Images as [n, 3, height, width] on a device; decoded there by nvJPEG where torchvision can."""
    device = torch.device(device)
    decoded = _decode_on_gpu(images, device) if device.type == "cuda" else None
    if decoded is not None:
        return stack(decoded) if size is None else fit_alike(decoded, size)
    rows = []
    for place, data in enumerate(images):
        try:
            rows.append(decode(data, size))
        except ValueError as error:
            raise SourceBroken(f"image {place} of the batch: {error}; leave it out") from error
    return stack(rows).to(device)


def fit_alike(images: Sequence[torch.Tensor], size: Size) -> torch.Tensor:
    """Fit images into a batch, those of one size together, a few at a time: a launch for each is slower."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        alike.setdefault(tuple(image.shape), []).append(place)
    batch = torch.empty((len(images), 3, *size), dtype=torch.uint8, device=images[0].device)
    for shape, places in alike.items():
        few = max(1, _FITTED_BYTES // (4 * math.prod(shape)))  # as floats
        for at in range(0, len(places), few):
            some = places[at : at + few]
            if len(some) == 1:
                batch[some[0]] = fit(images[some[0]], size)
            else:
                batch[some] = fit(torch.stack([images[place] for place in some]), size)
    return batch


def stack(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Images of one size as a batch."""
    shapes = {tuple(image.shape[-2:]) for image in images}
    if len(shapes) > 1:
        told = " and ".join(f"{h}x{w}" for h, w in sorted(shapes)[:2])
        raise UsageError(f"images of differing sizes in one batch ({told}): give size=(height, width)")
    return torch.stack(list(images))


def _decode_jpeg(data: Data, size: Size | None) -> Pixels:
    try:
        import simplejpeg
    except ImportError:
        return _decode_other(data, size)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours == "CMYK":  # libjpeg-turbo knows nothing of Adobe's inverted inks
            return _decode_other(data)
        least: dict[str, int] = {}
        if size is not None and (factor := _reduction((height, width), size)) > 1:
            least = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", **least)
    except ValueError as error:
        # Stray bytes before a marker (ImageNet has such files) and odd subsampling do no harm to the pixels.
        if str(error).startswith(_DAMAGE) and "extraneous bytes" not in str(error):
            raise ValueError(f"a broken image ({error})") from error
        return _decode_other(data)
    return pixels


def _reduction(have: Size, need: Size) -> int:
    """By how much the inverse DCT may shrink the image and still cover what is needed.

    Only by powers of two: to 5/8, which libjpeg-turbo also offers, took longer (0.57 ms) than to all of it
    (0.46 ms).
    """
    return next(
        (f for f in (8, 4, 2) if have[0] // f >= need[0] and have[1] // f >= need[1]),
        1,
    )


def _decode_other(data: Data, size: Size | None = None) -> Pixels:
    """By Pillow: PNG, CMYK, odd JPEGs, and all JPEGs where simplejpeg is absent."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("pillow", "images", "decoding images") from None
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            if size is not None:
                image.draft("RGB", (size[1], size[0]))
            if image.mode.startswith("I"):
                # To RGB Pillow would clip at 255, not scale.
                grey = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
                return np.repeat(grey[:, :, None], 3, axis=2)
            if image.mode == "P" and "transparency" in image.info:
                return np.array(image.convert("RGBA").convert("RGB"))  # at once, it would warn
            return np.array(image.convert("RGB"))
    except UnidentifiedImageError:
        raise ValueError(f"neither JPEG nor PNG: it begins with {bytes(data[:8])!r}") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"a broken image ({str(error).rstrip('.')})") from error


def _decode_on_gpu(images: Sequence[Data], device: torch.device) -> list[torch.Tensor] | None:
    """By nvJPEG, all at once; None where torchvision is absent or an image needs the CPU."""
    if not all(data[:3] == _JPEG for data in images):
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError):  # a torchvision for another torch fails with the latter
        return None
    packed: list[Any] = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in images]
    try:
        decoded: list[torch.Tensor] = decode_jpeg(packed, mode=ImageReadMode.RGB, device=device)
    except RuntimeError:  # CMYK or a broken one: the CPU's decoder does it, or names it
        return None
    return decoded
