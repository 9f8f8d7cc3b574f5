"""The kernel that gathers rows of the host's memory. Importing this needs triton."""

import torch
import triton
import triton.language as tl

# Bytes that a program copies: 8 loads of 16 bytes in flight for each thread of its one warp.
_BLOCK_BYTES = 4096


class _OnHost:
    """All that triton asks of a pointer: registered memory has the same address on both sides of the bus."""

    def __init__(self, words: torch.Tensor) -> None:
        self.dtype, self._address = words.dtype, words.data_ptr()

    def data_ptr(self) -> int:
        """The host's address."""
        return self._address


def gather(rows: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
    """Queue `out[i] = rows[indices[i]]`: the rows (n, words) in registered memory, the rest on the GPU."""
    count, words = out.shape
    if not count * words:
        return
    block = _BLOCK_BYTES // out.itemsize
    chunks = triton.cdiv(words, block)
    # One warp a program: many small ones leave room for the kernels of the training beside them.
    _gather[(count * chunks,)](_OnHost(rows), indices, out, words, chunks, block=block, num_warps=1)


@triton.jit  # type: ignore[untyped-decorator]
def _gather(rows, indices, out, words, chunks, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program copies one chunk of one row."""
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    word = (program % chunks) * block + tl.arange(0, block)
    inside = word < words
    index = tl.load(indices + row)
    tl.store(out + row * words + word, tl.load(rows + index * words + word, inside), inside)
