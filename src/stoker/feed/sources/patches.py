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
_NONE = np.empty(0, np.int64)


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


def cover_earlier(corners: Corners, patch: Size) -> Corners:
    """Of each patch of a grid, how many voxels from its front an earlier one has too: a row of three axes.

    What lies behind that on all axes is in no earlier patch: so all patches together have each voxel once.

    >>> cover_earlier(place_grid((4, 5, 3), (4, 2, 3), (4, 2, 3)), (4, 2, 3)).tolist()
    [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    """
    covered = np.empty_like(corners)
    for axis, side in enumerate(patch):
        starts, which = np.unique(corners[:, axis], return_inverse=True)
        shared = np.maximum(starts[:-1] + side - starts[1:], 0)
        covered[:, axis] = np.concatenate([[0], shared])[which]
    return covered


class RandomPlaces:
    """Corners of `count` patches for each epoch, as many of them around labelled voxels as `around` says.

    Each is a matter of the seed, the epoch and its number: any is worked out by itself, in any process. The
    others lie anywhere with equal chance. `voxels` are labelled ones in the order in which they are taken;
    when all have been, the first come again.

    Those of an epoch are numbered by where they lie, cell by cell of a patch's size, so that blocks of
    consecutive numbers share chunks: an order that shuffles by blocks then reads each chunk few times.
    """

    def __init__(
        self,
        shape: Size,
        patch: Size,
        count: int,
        *,
        seed: int,
        epochs: int = 1,
        around: int = 0,
        voxels: NDArray[np.int64] = _NONE,
    ) -> None:
        self._shape, self._patch, self._count = shape, patch, count
        self._seed, self._epochs = seed, epochs
        self._around, self._voxels = around, voxels
        self._kept: dict[int, Corners] = {}

    def __len__(self) -> int:
        return self._count * self._epochs

    def corners(self, numbers: NDArray[np.int64]) -> Corners:
        """Where these patches begin; epoch after epoch they are numbered."""
        epochs, within = np.divmod(numbers, self._count)
        found = np.empty((len(numbers), 3), np.int64)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            found[rows] = self._epoch(epoch)[within[rows]]
        return found

    def digest(self) -> bytes:
        """What tells these places from others."""
        if self._epochs == 1:
            return self._epoch(0).tobytes()
        told = (
            f"{self._epochs} epochs of {self._count} by {self._seed} in {self._shape}, {self._around} around "
        )
        return told.encode() + self._voxels.tobytes()

    def _epoch(self, epoch: int) -> Corners:
        """An epoch's, worked out once while it is at work; threads that meet here come to the same."""
        found = self._kept.get(epoch)
        if found is None:
            found = self._place(epoch)
            last = list(self._kept.items())[-1:]  # readers are ahead of the loop: at an epoch's end, in two
            self._kept = {**dict(last), epoch: found}
        return found

    def _place(self, epoch: int) -> Corners:
        room = np.array(self._shape) - np.array(self._patch)
        corners = np.empty((self._count, 3), np.int64)
        if self._around:
            taken = np.arange(epoch * self._around, (epoch + 1) * self._around) % len(self._voxels)
            centres = np.stack(np.unravel_index(self._voxels[taken], self._shape), axis=1)
            corners[: self._around] = np.clip(centres - np.array(self._patch) // 2, 0, room)
        others = self._count - self._around
        numbers = np.arange(epoch * others, (epoch + 1) * others, dtype=np.int64)
        drawn = [uniform(key(self._seed, "corner", axis), numbers) for axis in range(3)]
        corners[self._around :] = np.stack(drawn, axis=1) * (room + 1)
        cells = corners // np.array(self._patch)
        return corners[np.lexsort((cells[:, 2], cells[:, 1], cells[:, 0]))]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}


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

    def voxels(self) -> NDArray[np.int64]:
        """`count` of them, as they come in a flat array of the volume; where fewer are labelled, all."""
        self._choose()
        return self._kept

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
