"""Crop, resize, flip, normalise and cast a batch of images in one Triton kernel.

Computes what `transforms.transform_plainly` does, operation by operation and rounded alike: products and sums
are not fused, so the two agree to the bit where the hardware's rules do. Importing this needs triton.
"""

import torch
import triton
import triton.language as tl

from stoker.feed.crops import Cut
from stoker.feed.transforms import upload

# New pixels a program; 8 for each thread of 4 warps.
_BLOCK = 1024


def transform_fused(
    images: torch.Tensor, cut: Cut, colour: torch.Tensor, dtype: torch.dtype, channels_last: bool
) -> torch.Tensor:
    """The new images, on the images' CUDA device and its current stream."""
    count, channels = images.shape[:2]
    height, width = cut.size
    layout = torch.channels_last if channels_last else torch.contiguous_format
    new = torch.empty(
        (count, channels, height, width), dtype=dtype, device=images.device, memory_format=layout
    )
    if not count:
        return new
    table = upload(cut.table, images.device)
    tiles = triton.cdiv(height * width, _BLOCK)
    with torch.cuda.device(images.device):  # triton launches on the current one
        _transform[(count * tiles,)](
            images, new, table, colour, tiles, channels, height, width,
            *images.stride(), *new.stride(),
            resampled=cut.resampled, block=_BLOCK, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return new


def try_on(device: torch.device) -> None:
    """Build and run the kernel for one pixel; RuntimeError, OSError or SubprocessError if it cannot be."""
    image = torch.zeros((1, 1, 1, 1), dtype=torch.uint8, device=device)
    table = torch.tensor([[0.0, 0, 1, 1, 0, 1, 1]]).numpy()
    colour = torch.zeros((2, 1), device=device)
    try:
        transform_fused(image, Cut(table, (1, 1), True), colour, torch.float32, False)
    except triton.TritonError as error:
        raise RuntimeError(str(error)) from error


@triton.jit  # type: ignore[untyped-decorator]
def _transform(  # type: ignore[no-untyped-def]  # a kernel's parameters are pointers and numbers of its own
    images, new, table, colour, tiles, channels, height, width,
    image_step, channel_step, row_step, column_step,
    new_image_step, new_channel_step, new_row_step, new_column_step,
    resampled: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A program makes `block` pixels of one image in all its channels; an image's tiles run side by side."""
    program = tl.program_id(0)
    image = (program // tiles).to(tl.int64)  # a batch may have more than 2**31 pixels
    pixel = (program % tiles) * block + tl.arange(0, block)
    inside = pixel < height * width
    y = pixel // width
    x = pixel % width
    target = new + image * new_image_step + y.to(tl.int64) * new_row_step + x * new_column_step

    entry = table + image * 7
    top = tl.load(entry).to(tl.int32)
    left = tl.load(entry + 1).to(tl.int32)
    rows = tl.load(entry + 2).to(tl.int32)
    columns = tl.load(entry + 3).to(tl.int32)
    x = tl.where(tl.load(entry + 4) > 0, width - 1 - x, x)

    exact_y = tl.maximum((y.to(tl.float32) + 0.5) * tl.load(entry + 5) - 0.5, 0.0)
    exact_x = tl.maximum((x.to(tl.float32) + 0.5) * tl.load(entry + 6) - 0.5, 0.0)
    upper = tl.minimum(exact_y.to(tl.int32), rows - 1)
    before = tl.minimum(exact_x.to(tl.int32), columns - 1)
    down = exact_y - upper.to(tl.float32)
    right = exact_x - before.to(tl.float32)
    lower = (top + tl.minimum(upper + 1, rows - 1)).to(tl.int64) * row_step
    after = (left + tl.minimum(before + 1, columns - 1)) * column_step
    upper = (top + upper).to(tl.int64) * row_step
    before = (left + before) * column_step

    source = images + image * image_step
    for channel in range(channels):
        value = tl.load(source + upper + before, mask=inside, other=0).to(tl.float32)
        if resampled:
            beside = tl.load(source + upper + after, mask=inside, other=0).to(tl.float32)
            below = tl.load(source + lower + before, mask=inside, other=0).to(tl.float32)
            across = tl.load(source + lower + after, mask=inside, other=0).to(tl.float32)
            value = value * (1 - down) + below * down
            beside = beside * (1 - down) + across * down
            value = value * (1 - right) + beside * right
        value = value * tl.load(colour + channel) + tl.load(colour + channels + channel)
        tl.store(target, value, mask=inside)
        source += channel_step
        target += new_channel_step
