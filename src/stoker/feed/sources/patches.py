"""Where patches lie in a volume: by grid or at random, some around labelled voxels. Pure: no files."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.feed.draws import bits, key, uniform

Corners: TypeAlias = NDArray[np.int64]
Size: TypeAlias = tuple[int, int, int]
# So many voxels are looked at together, at 40 bytes each where all are labelled.
_TOGETHER = 1 << 20


def place_grid(shape: Size, patch: Size, stride: Size) -> Corners:
    """Corners of patches that cover the volume, the last of each axis moved back to fit; x runs fastest.

    >>> place_grid((4, 5, 3), (4, 2, 3), (4, 2, 3)).tolist()
    [[0, 0, 0], [0, 2, 0], [0, 3, 0]]
    """
    for axis, (step, side) in enumerate(zip(stride, patch, strict=True)):
        if not 1 <= step <= side:
            raise UsageError(
                f"stride {stride} is {step} on axis {axis}, where a patch is {side}: take 1 to {side}, "
                "so that no voxel is left out"
            )
    starts = [
        [*range(0, length - side, step), length - side]
        for length, side, step in zip(shape, patch, stride, strict=True)
    ]
    return np.array(list(product(*starts)), dtype=np.int64)


def place_random(shape: Size, patch: Size, count: int, seed: int, centres: Corners) -> Corners:
    """Corners of `count` patches: one around each centre, the others anywhere with equal chance.

    They are numbered by where they lie, cell by cell of a patch's size, so that blocks of consecutive numbers
    share chunks: an order that shuffles by blocks then reads each chunk few times.
    """
    room = np.array(shape) - np.array(patch)
    around = np.clip(centres - np.array(patch) // 2, 0, room)
    numbers = np.arange(count - len(around), dtype=np.int64)
    drawn = [uniform(key(seed, "corner", axis), numbers) for axis in range(3)]
    anywhere = (np.stack(drawn, axis=1) * (room + 1)).astype(np.int64)
    corners = np.concatenate([around, anywhere])
    cells = corners // np.array(patch)
    return corners[np.lexsort((cells[:, 2], cells[:, 1], cells[:, 0]))]


class VoxelDraw:
    """Voxels drawn from all that are labelled, each with equal chance, seen block by block.

    Every voxel has a random priority, hashed from where it is; those with the lowest are kept. So what is
    drawn depends neither on the blocks nor on their order, and memory is bounded by `count`.
    """

    def __init__(self, shape: Size, count: int, seed: int) -> None:
        self.seen = 0
        self._shape, self._count = shape, count
        self._key = key(seed, "voxel")
        self._kept, self._priorities = np.empty(0, np.int64), np.empty(0, np.uint64)
        self._limit: np.uint64 | None = None

    def add(self, labelled: NDArray[np.bool_], corner: Size) -> None:
        """A block of the volume, whose first voxel lies at `corner`."""
        step = max(1, _TOGETHER // max(1, labelled[0].size))
        for low in range(0, len(labelled), step):
            self._add(np.nonzero(labelled[low : low + step]), (corner[0] + low, *corner[1:]))

    def voxels(self) -> Corners:
        """`count` of them; where fewer are labelled, the same ones again."""
        self._choose()
        places = np.unravel_index(np.resize(self._kept, self._count), self._shape)
        return np.stack(places, axis=1).astype(np.int64)

    def _add(self, found: tuple[NDArray[np.int64], ...], corner: Size) -> None:
        self.seen += len(found[0])
        places = [axis + low for axis, low in zip(found, corner, strict=True)]
        voxels = np.asarray(np.ravel_multi_index(places, self._shape), np.int64)
        priorities = bits(self._key, voxels.view(np.uint64))
        if self._limit is not None:
            better = priorities < self._limit
            voxels, priorities = voxels[better], priorities[better]
        self._kept = np.concatenate([self._kept, voxels])
        self._priorities = np.concatenate([self._priorities, priorities])
        if len(self._kept) > self._count + _TOGETHER:  # not for every few that come
            self._choose()

    def _choose(self) -> None:
        order = np.argsort(self._priorities, kind="stable")[: self._count]
        self._kept, self._priorities = self._kept[order], self._priorities[order]
        if self._count and len(order) == self._count:
            self._limit = self._priorities[-1]


def cut_blocks(shape: Size, chunk: Size, most: int) -> Iterator[tuple[Size, Size]]:
    """Corners and sizes of blocks that make up the volume: whole chunks, of `most` voxels together."""
    block = list(chunk)
    for axis in (2, 1, 0):
        block[axis] = min(shape[axis], block[axis] * max(1, most // prod(block)))
    ranges: list[Any] = [range(0, length, side) for length, side in zip(shape, block, strict=True)]
    for low in product(*ranges):
        z, y, x = (min(side, length - start) for side, length, start in zip(block, shape, low, strict=True))
        yield (low[0], low[1], low[2]), (z, y, x)
