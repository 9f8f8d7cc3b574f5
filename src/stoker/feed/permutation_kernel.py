"""The random permutation of `permutation.py` on a GPU, by one Triton kernel: the same numbers to the bit.

A batch of 256 x 98 KB from VRAM costs the H200's host 37 us where NumPy works the order out, and 19 where the
device does: 64 batches at one launch, and the numbers are then where the gather wants them. Importing this
needs triton.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from stoker.feed.permutation import permute, table_of

_BLOCK = 256
# As in `draws.py`.
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)
# Lengths to try: of few numbers, which take more rounds, and one that no table fits exactly.
_TRIED = (7, 1000, 40_960, 100_003, (1 << 33) + 1)


def permute_rows(
    first: int, shape: tuple[int, int], apart: int, n: int, key: int, device: torch.device
) -> torch.Tensor:
    """The numbers at these positions, row after row: a row has `shape[1]` in a row and begins `apart` on."""
    out = torch.empty(shape[0] * shape[1], dtype=torch.int64, device=device)
    rows, columns, rounds = table_of(n)
    signed = key - (1 << 64) if key >> 63 else key  # a kernel's argument has a sign
    with torch.cuda.device(device):  # triton launches on the current one
        _permute[(triton.cdiv(len(out), _BLOCK),)](
            out, len(out), first, shape[1], apart, n, rows, columns, signed, rounds, _BLOCK
        )
    return out


def try_on(device: torch.device) -> None:
    """Build and run the kernel; RuntimeError, OSError or SubprocessError if it cannot be, or is wrong."""
    for n in _TRIED:
        first, shape, apart = n // 3, (3, max(1, n // 9 % 50)), n // 5
        positions = first + np.arange(shape[0])[:, None] * apart + np.arange(shape[1])
        for key in (1, 0x1234567890ABCDEF, 0xFEDCBA0987654321):  # a kernel for 32 bits, and one for 64
            try:
                found = permute_rows(first, shape, apart, n, key, device).tolist()
            except triton.TritonError as error:
                raise RuntimeError(str(error)) from error
            if found != permute(positions.ravel(), n, key).tolist():
                raise RuntimeError(f"the kernel permutes {n} numbers in another way")


@triton.jit
def _bits(key, counter):  # type: ignore[no-untyped-def]
    """`draws.bits`."""
    word = counter * _GOLDEN + key
    word = (word ^ (word >> 30)) * _FIRST
    word = (word ^ (word >> 27)) * _SECOND
    return word ^ (word >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _through(cell, rows, columns, key, rounds: tl.constexpr):  # type: ignore[no-untyped-def]
    """The network of `permutation.py`, without its tables."""
    row = cell // columns
    column = cell - row * columns
    for number in tl.static_range(rounds):
        own = _bits(key, tl.full((), number, tl.uint64))
        if number % 2 == 0:
            row += ((_bits(own, column) >> 32) * rows) >> 32
            row = tl.where(row >= rows, row - rows, row)
        else:
            column += ((_bits(own, row) >> 32) * columns) >> 32
            column = tl.where(column >= columns, column - columns, column)
    return row * columns + column


# One kernel for all epochs and places in them.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "first", "each", "apart", "n", "rows", "columns", "key"]
)
def _permute(  # type: ignore[no-untyped-def]
    out, count, first, each, apart, n, rows, columns, key, rounds: tl.constexpr, block: tl.constexpr
):
    """A program works out `block` numbers; what lands outside goes through the network again."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    cell = first.to(tl.int64) + at // each * apart.to(tl.int64) + at % each
    cell = tl.where(inside, cell, 0).to(tl.uint64)
    n, rows, columns, key = n.to(tl.uint64), rows.to(tl.uint64), columns.to(tl.uint64), key.to(tl.uint64)
    cell = _through(cell, rows, columns, key, rounds)
    outside = cell >= n
    while tl.max(outside.to(tl.int32), 0) > 0:
        cell = tl.where(outside, _through(cell, rows, columns, key, rounds), cell)
        outside = cell >= n
    tl.store(out + at, cell.to(tl.int64), inside)
