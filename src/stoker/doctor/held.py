"""A few batches, held and handed out again and again: the loop computes, and waits for nothing."""

from collections import deque
from copy import deepcopy
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

# At the least: with fewer, what a step reads may still be in a cache where a new batch would not be.
RING = 4


class Held:
    """The last batches that a loader gave.

    Each is handed out in a container of its own, and put back as it was if the loop has changed it.
    """

    def __init__(self) -> None:
        self._ring: deque[_Kept] = deque(maxlen=RING)

    def keep(self, batch: Any) -> None:
        """Remember a batch in place of the oldest."""
        self._ring.append(_Kept(batch))

    @property
    def full(self) -> bool:
        """Whether there are enough of them."""
        return len(self._ring) == RING

    def next(self) -> Any:
        """The next one in turn."""
        kept = self._ring[0]
        self._ring.rotate(-1)
        return kept.hand_out()

    def nbytes(self) -> int | None:
        """Bytes of tensors in a batch, in the mean; None where there are none."""
        sizes = [kept.nbytes() for kept in self._ring]
        return round(sum(sizes) / len(sizes)) if sizes and sum(sizes) else None

    def batches(self) -> list[Any]:
        """All of them as they came: to be read, and not written to."""
        return [kept.whole() for kept in self._ring]

    def leaves(self) -> list[list[Any]]:
        """What is in each batch, flat."""
        return [kept.leaves for kept in self._ring]


def bytes_in(batch: Any) -> int:
    """Bytes of the tensors in a batch."""
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def samples_of(iterator: Any) -> int | None:
    """How many samples the dataset of a loader's iterator has; None of a stream, or where it does not say."""
    try:
        return len(iterator._dataset)
    except Exception:  # noqa: BLE001  # the script's own `__len__` may raise anything
        return None


class _Kept:
    def __init__(self, batch: Any) -> None:
        self.leaves, self._spec = tree_flatten(tree_map(_copied, batch))
        self._working = [_copied(leaf) for leaf in self.leaves]
        self._versions = [_version(leaf) for leaf in self._working]

    def hand_out(self) -> Any:
        for at, (kept, working) in enumerate(zip(self.leaves, self._working, strict=True)):
            if not isinstance(kept, torch.Tensor) or _version(working) != self._versions[at]:
                self._working[at] = _copied(kept)
                self._versions[at] = _version(self._working[at])
        return tree_unflatten(self._working, self._spec)

    def whole(self) -> Any:
        return tree_unflatten(self.leaves, self._spec)

    def nbytes(self) -> int:
        return bytes_in(self.leaves)


def _copied(leaf: Any) -> Any:
    """A copy of its own: of a tensor pinned as it was, of a container that torch does not know the whole."""
    if not isinstance(leaf, torch.Tensor):
        return deepcopy(leaf)
    copy = leaf.detach().clone()
    return copy.pin_memory() if leaf.is_pinned() else copy


def _version(leaf: Any) -> int:
    return leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else 0
