"""Patches of several scrolls as one source: read from disk, cut from memory, or only said where they lie.

All three have the same samples, numbered alike and with the same fingerprint: a training may go on from a
checkpoint wherever its volumes are held by then.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.feed.sources.base import Indices, Source, checked
from stoker.feed.sources.patches import Size
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.sources.volume_arrays import describe_volume
from stoker.workloads.vesuvius.scrolls import SHEET, Scroll

# Epochs with patches of their own. No training has as many, and how many it has is no part of what its
# samples are: it may go on for longer than it was begun for.
EPOCHS = 1 << 20
# A row for each patch: the number of its scroll, then depth, height and width of its corner.
Places: TypeAlias = NDArray[np.int64]


class ScrollSource(Source):
    """The patches of several scrolls one after another, read from disk; those of an epoch, then the next's.

    A sample is `{"image": (1, D, H, W), "label": (1, D, H, W)}`, uint8 both.
    """

    def __init__(self, parts: Sequence[VolumeSource], epochs: int = 1) -> None:
        self._parts, self._epochs = tuple(parts), epochs
        self._counts = np.array([len(part) // epochs for part in parts])
        self._starts = np.cumsum([0, *self._counts])

    @classmethod
    def at_random(
        cls,
        scrolls: Sequence[Scroll],
        *,
        patch: Size,
        samples: int,
        foreground: float,
        seed: int,
        epochs: int = 1,
    ) -> "ScrollSource":
        """Others in each epoch, as many of each scroll as of any other; a share around voxels of a sheet."""
        counts = [
            samples // len(scrolls) + (number < samples % len(scrolls)) for number in range(len(scrolls))
        ]
        return cls(
            [
                VolumeSource(
                    scroll.volume,
                    labels=scroll.labels,
                    patch=patch,
                    samples_per_epoch=count,
                    epochs=epochs,
                    foreground=foreground,
                    foreground_values=(SHEET,),
                    seed=seed + number,
                )
                for number, (scroll, count) in enumerate(zip(scrolls, counts, strict=True))
                if count
            ],
            epochs,
        )

    @classmethod
    def by_grid(cls, scrolls: Sequence[Scroll], *, patch: Size, stride: Size | None = None) -> "ScrollSource":
        """Patches that cover the scrolls."""
        return cls(
            [
                VolumeSource(scroll.volume, labels=scroll.labels, patch=patch, mode="grid", stride=stride)
                for scroll in scrolls
            ]
        )

    def __len__(self) -> int:
        return self.per_epoch * self._epochs

    def __repr__(self) -> str:
        return f"ScrollSource({self.per_epoch} patches an epoch of {len(self._parts)} scrolls)"

    @property
    def per_epoch(self) -> int:
        """Patches of one epoch."""
        return int(self._starts[-1])

    @property
    def patch(self) -> Size:
        """Depth, height and width of a patch."""
        return self._parts[0].patch

    def read(self, indices: Indices) -> dict[str, torch.Tensor]:
        """A read of each scroll that has patches in the batch."""
        scrolls, numbers = self._find(indices)
        batch = {
            name: torch.empty((len(scrolls), 1, *self.patch), dtype=torch.uint8)
            for name in ("image", "label")
        }
        for number in np.unique(scrolls).tolist():
            rows = np.flatnonzero(scrolls == number)
            found = self._parts[number].read(numbers[rows])
            for name, field in batch.items():
                field[torch.from_numpy(rows)] = found[name]
        return batch

    def places(self, indices: Indices) -> Places:
        """Where these patches lie."""
        scrolls, numbers = self._find(indices)
        places = np.empty((len(scrolls), 4), np.int64)
        places[:, 0] = scrolls
        for number in np.unique(scrolls).tolist():
            rows = scrolls == number
            places[rows, 1:] = self._parts[number].corners(numbers[rows])
        return places

    def covered(self, indices: Indices) -> Indices:
        """Of patches that cover the scrolls, how many voxels from the front an earlier one has too."""
        scrolls, numbers = self._find(indices)
        covered = np.empty((len(scrolls), 3), np.int64)
        for number in np.unique(scrolls).tolist():
            rows = scrolls == number
            covered[rows] = self._parts[number].covered(numbers[rows])
        return covered

    def fingerprint(self) -> str:
        """Of all scrolls' patches."""
        told = "\0".join(part.fingerprint() for part in self._parts)
        return hashlib.sha256(f"scrolls 1 {told}".encode()).hexdigest()

    def _find(self, indices: Indices) -> tuple[Indices, Indices]:
        """The scrolls that these patches are of, and their numbers among those of the scroll."""
        epochs, within = np.divmod(checked(indices, len(self)), self.per_epoch)
        scrolls = np.searchsorted(self._starts, within, side="right") - 1
        return scrolls, epochs * self._counts[scrolls] + within - self._starts[scrolls]


class HeldScrolls:
    """Volumes and labels in one memory, a device's or the host's, as bytes."""

    def __init__(self, volumes: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._volumes = tuple(volumes)

    @classmethod
    def load(cls, scrolls: Sequence[Scroll], device: torch.device) -> "HeldScrolls":
        """Read all of them, a slab at a time."""
        return cls([(_load(scroll.volume, device), _load(scroll.labels, device)) for scroll in scrolls])

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(tensor.nbytes for pair in self._volumes for tensor in pair)

    def move(self, device: torch.device) -> None:
        """To another memory; what they took before is free then."""
        self._volumes = tuple((image.to(device), label.to(device)) for image, label in self._volumes)

    def drop(self) -> None:
        """Hold nothing any more."""
        self._volumes = ()

    def cut(self, places: Places, patch: Size) -> dict[str, torch.Tensor]:
        """The patches at these places, in the memory that the volumes are in: one copy for each field."""
        depth, height, width = patch
        images, labels = [], []
        for number, z, y, x in places.tolist():
            box = (slice(z, z + depth), slice(y, y + height), slice(x, x + width))
            image, label = self._volumes[number]
            images.append(image[box])
            labels.append(label[box])
        return {"image": torch.stack(images)[:, None], "label": torch.stack(labels)[:, None]}


class HeldSource(Source):
    """The patches of a source, cut from volumes in the host's memory."""

    def __init__(self, source: ScrollSource, held: HeldScrolls) -> None:
        self._source, self._held = source, held

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"HeldSource({self._source!r})"

    def read(self, indices: Indices) -> dict[str, torch.Tensor]:
        """Copies of the patches."""
        return self._held.cut(self._source.places(indices), self._source.patch)

    def fingerprint(self) -> str:
        """That of what is held."""
        return self._source.fingerprint()


class PlaceSource(Source):
    """Where the patches of a source lie, for a transform that cuts them on the device: 32 bytes a sample."""

    def __init__(self, source: ScrollSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"PlaceSource({self._source!r})"

    def read(self, indices: Indices) -> dict[str, torch.Tensor]:
        """The number of the scroll and the corner in it, a row a patch."""
        return {"place": torch.from_numpy(self._source.places(indices))}

    def fingerprint(self) -> str:
        """That of the patches."""
        return self._source.fingerprint()


# What is read at one go when a volume is loaded: 64 slices of 3,000 x 3,000 are 576 MB.
_SLAB = 64


def _load(path: Path, device: torch.device) -> torch.Tensor:
    """A whole volume, without a second copy of it on the host when it goes to a device."""
    space = describe_volume(path, str(path)).space
    slab_shape = (min(_SLAB, space[0]), space[1], space[2])
    slabs = VolumeSource(path, patch=slab_shape, mode="grid", cache_bytes=0)
    whole = torch.empty(space, dtype=torch.uint8, device=device)
    for number in range(len(slabs)):
        chosen = np.array([number])
        start = int(slabs.corners(chosen)[0, 0])
        slab = slabs.read(chosen)["image"][0, 0]
        whole[start : start + len(slab)] = slab.to(device)
    return whole


def read_middle(scroll: Scroll, depth: int) -> dict[str, NDArray[np.uint8]]:
    """The `image` and `label` of the middle of a scroll, so many slices deep."""
    _, height, width = describe_volume(scroll.volume, scroll.name).space
    box = (depth, height, width)
    slabs = VolumeSource(scroll.volume, labels=scroll.labels, patch=box, mode="grid", stride=(1, *box[1:]))
    found = slabs.read(np.array([len(slabs) // 2]))
    return {name: field[0, 0].numpy() for name, field in found.items()}
