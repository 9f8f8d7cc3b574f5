"""The kernel that gathers rows of the host's memory, or of the GPU's. Importing it needs triton."""

from typing import Any

import torch
import triton
import triton.language as tl

# Bytes that a program copies at once: 8 loads of 16 bytes in flight for each thread of its one warp.
_BLOCK_BYTES = 4096
# Programs at work. Fewer do not fill the bus (64 bring 49.5 GB/s, 80 bring 50.4, as do 160), more take more
# from the kernels of the training beside them: a step of matrix products took 640 us without a gather, 778
# beside 66 programs, 864 beside 264 (H200).
_OVER_BUS = 80
# As many as the device's own memory takes.
_ON_DEVICE = 2112
# By what they were compiled for. By Triton's own way in, a launch takes the host 18 us, and by these 11.
_compiled: dict[tuple[Any, ...], Any] = {}


class _OnHost:
    """All that triton asks of a pointer: registered memory has the same address on both sides of the bus."""

    def __init__(self, words: torch.Tensor) -> None:
        self.dtype, self._address = words.dtype, words.data_ptr()

    def data_ptr(self) -> int:
        """The host's address."""
        return self._address


def gather(rows: torch.Tensor, indices: torch.Tensor, out: torch.Tensor, *, stream: int) -> None:
    """Queue `out[i] = rows[indices[i]]` where there is such a row; what lies beyond stays as it is.

    The rows (n, words) are in registered memory or on the GPU, the rest is on the GPU.
    """
    count, words = out.shape
    if not count * words:
        return
    block = _BLOCK_BYTES // out.itemsize
    chunks = triton.cdiv(words, block)
    total = count * chunks
    grid = (min(total, _OVER_BUS if rows.is_cpu else _ON_DEVICE), 1, 1)
    key = (out.device.index, out.dtype, words)
    compiled = _compiled.get(key)
    if compiled is None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, out.device)):
            _compiled[key] = _gather[grid](
                _OnHost(rows),
                rows.shape[0],
                indices,
                out,
                total,
                words,
                chunks,
                block,
                num_warps=1,
                num_stages=1,
            )
        return
    addresses = rows.data_ptr(), rows.shape[0], indices.data_ptr(), out.data_ptr()
    compiled[grid](*addresses, total, words, chunks, block, stream=stream)


# One kernel for all batches: how many rows there are, and where indices begin, differ from one to the next.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["length", "total"], do_not_specialize_on_alignment=["indices"]
)
def _gather(  # type: ignore[no-untyped-def]
    rows, length, indices, out, total, words: tl.constexpr, chunks: tl.constexpr, block: tl.constexpr
):
    """A program copies every so many chunks of rows."""
    for at in range(tl.program_id(0), total, tl.num_programs(0)):
        row = (at // chunks).to(tl.int64)
        word = (at % chunks) * block + tl.arange(0, block)
        index = tl.load(indices + row)
        inside = (word < words) & (index < length)
        tl.store(out + row * words + word, tl.load(rows + index * words + word, inside), inside)
