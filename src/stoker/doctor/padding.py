"""How much of a batch is padding: what follows the end of each sequence, as far as that can be told.

Looked for in whole numbers (tokens) along the second dimension. Padding is a value that ends most rows of a
batch; a tensor of two values, such as a mask or a target in classes, tells nothing.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

_FEWEST_VALUES = 3
_LEAST_LENGTH = 8


def share_of_padding(batches: Sequence[Sequence[Any]]) -> float | None:
    """The share of a batch's tokens that are padding, in the mean; None where no tensor looks like tokens."""
    found = [share for leaves in batches for leaf in leaves if (share := _share(leaf)) is not None]
    return sum(found) / len(found) if found else None


def read_padding(told: Mapping[str, Mapping[str, Any]]) -> float | None:
    """By the held batches; where there are none, by what the model was called with."""
    held = told.get("batch", {}).get("padding")
    called = told.get("observed", {}).get("padding") or ()
    return held if held is not None or not called else fmean(called)


def _share(leaf: Any) -> float | None:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() != 2 or leaf.is_floating_point() or leaf.is_complex():
        return None
    rows, length = leaf.shape
    if rows < 2 or length < _LEAST_LENGTH or len(leaf.unique()) < _FEWEST_VALUES:
        return None
    pad = leaf[:, -1].mode().values
    is_pad = leaf.flip(1) == pad
    trailing = is_pad.long().cumprod(1).sum(1)  # one sequence, the longest, has none
    return float(trailing.sum() / (rows * length)) if int((trailing > 0).sum()) * 2 >= rows else 0.0
