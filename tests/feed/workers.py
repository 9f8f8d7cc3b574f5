"""What is asked of every source: read by real workers, pickled, compared bit by bit."""

import pickle
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.feed.sources.base import Source


def read_in_workers(source: Source, start: str, *, batch_size: int = 4) -> list[Any]:
    """All batches, by a real DataLoader with two workers."""
    loader: DataLoader[Any] = DataLoader(
        source, batch_size=batch_size, num_workers=2, multiprocessing_context=start
    )
    with warnings.catch_warnings():
        # From Python 3.12 a fork beside threads is warned of; that it goes well is what is tested.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        return list(loader)


def reopened(source: Source) -> Any:
    """The source as another process would get it."""
    return pickle.loads(pickle.dumps(source))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in type, shape and every bit; NaN equals itself."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    )
