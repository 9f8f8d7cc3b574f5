"""What a sample is, so that it can be kept as tensors and given back as it was: for a collate of one's own.

form = SampleForm.of(sample)        # (array, label) or {"x": tensor, "weight": 0.5}, nested
kept = form.stack(samples)          # a tensor a leaf
samples = form.unstack(kept)        # arrays, numbers and containers again
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from stoker.errors import NotPackable

# How a leaf of each type becomes a row, and is made of one again. By type, not by kinship: a class of its own
# would come back as another.
_TO: dict[type, Callable[[list[Any]], torch.Tensor]] = {
    torch.Tensor: torch.stack,
    np.ndarray: lambda arrays: torch.from_numpy(np.stack(arrays)),
    bool: lambda values: torch.tensor(values, dtype=torch.bool),
    int: lambda values: torch.tensor(values, dtype=torch.int64),
    float: lambda values: torch.tensor(values, dtype=torch.float64),
}
_FROM: dict[type, Callable[[torch.Tensor], Any]] = {
    torch.Tensor: lambda row: row,
    np.ndarray: lambda row: row.numpy(),
    bool: lambda row: row.item(),
    int: lambda row: row.item(),
    float: lambda row: row.item(),
}


@dataclass(frozen=True, kw_only=True)
class SampleForm:
    """The containers of a sample, and the types of what is in them."""

    spec: TreeSpec
    kinds: tuple[type, ...]

    @classmethod
    def of(cls, sample: Any) -> "SampleForm":
        """NotPackable where something in it is neither a tensor, an array nor a number."""
        leaves, spec = tree_flatten(sample)
        for leaf in leaves:
            if type(leaf) not in _TO:
                raise NotPackable(
                    f"a sample holds a {type(leaf).__qualname__}: not a tensor, array or number"
                )
        return cls(spec=spec, kinds=tuple(type(leaf) for leaf in leaves))

    def stack(self, samples: Sequence[Any]) -> list[torch.Tensor]:
        """A tensor for each leaf, a row a sample; NotPackable where one is of another form."""
        columns: list[list[Any]] = [[] for _ in self.kinds]
        for sample in samples:
            leaves, spec = tree_flatten(sample)
            if spec != self.spec or tuple(type(leaf) for leaf in leaves) != self.kinds:
                raise NotPackable("samples are not alike: of other containers, or with other types in them")
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(leaf)
        try:
            return [_TO[kind](column) for kind, column in zip(self.kinds, columns, strict=True)]
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise NotPackable(f"samples cannot be put side by side: {error}") from error

    def unstack(self, rows: Sequence[torch.Tensor]) -> list[Any]:
        """The samples again, in the rows' memory."""
        columns = [
            [_FROM[kind](row) for row in leaf.unbind()] for kind, leaf in zip(self.kinds, rows, strict=True)
        ]
        return [tree_unflatten(list(leaves), self.spec) for leaves in zip(*columns, strict=True)]
