"""A batch cut into micro-batches: whatever it is made of, every tensor along its first dimension. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import OutOfMemoryError, Tensor

from stoker.errors import UsageError

# What libraries on a card say, and torch's allocator on the host, which has no class for it.
_NO_MEMORY = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
)


def count_samples(batch: Any) -> int:
    """The length of the first tensor in a batch."""
    for tensor in _tensors(batch):
        if tensor.ndim:
            return len(tensor)
    raise UsageError(f"a batch without tensors ({type(batch).__name__}): give the task a `count` of its own")


def cut_samples(batch: Any, start: int, stop: int) -> Any:
    """Samples start to stop - 1; what is no tensor, or has no dimension, belongs to all of them.

    >>> import torch
    >>> cut_samples({"x": torch.arange(4), "scale": 2}, 1, 3)
    {'x': tensor([1, 2]), 'scale': 2}
    """
    if isinstance(batch, Tensor):
        return batch[start:stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: cut_samples(value, start, stop) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cut_samples(value, start, stop) for value in batch))
    if isinstance(batch, (list, tuple)):
        if batch and not any(True for _ in _tensors(batch)):
            return batch[start:stop]  # a name for each sample
        return type(batch)(cut_samples(value, start, stop) for value in batch)
    return batch


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the micro-batches of a share begin and end: as few as can be, of sizes alike.

    Alike, since a last one of a single sample has no statistics for a BatchNorm.

    >>> list(spans(10, 4)), list(spans(4, 3))
    ([(0, 4), (4, 7), (7, 10)], [(0, 2), (2, 4)])
    """
    parts = -(-count // size)
    for part in range(parts):
        yield -(-count * part // parts), -(-count * (part + 1) // parts)


def halve(size: int) -> int | None:
    """The next smaller micro-batch; None below one sample.

    Rounded up: 3 micro-batches of 2 hold 6 samples as 2 of 3 do, with one run more.
    """
    return None if size == 1 else -(-size // 2)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device ran out of memory; its libraries have errors of their own for it."""
    told = str(error)
    return isinstance(error, OutOfMemoryError) or any(word in told for word in _NO_MEMORY)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)
