"""Patches of a 3D volume and its labels: zarr, n5, `.npy` or in memory, read a batch at a time."""

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import MissingExtra, SourceBroken, UsageError
from stoker.feed.arguments import checked_box, checked_bytes, checked_count, checked_share
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.base import Indices, Source, checked, told_apart
from stoker.feed.sources.chunk_reader import Places, Request, open_reader
from stoker.feed.sources.npy_file import NpyMap, torch_dtype
from stoker.feed.sources.patches import (
    Corners,
    RandomPlaces,
    Size,
    VoxelDraw,
    cover_earlier,
    cut_blocks,
    place_grid,
)
from stoker.feed.sources.volume_arrays import (
    ChunkedVolume,
    HeldVolume,
    MappedVolume,
    Volume,
    describe_volume,
)
from stoker.feed.tiers.batch_memory import fresh_batch

# Decoded chunks of 64 cubed bytes for a batch of 16 patches of 72 x 136 x 136: up to 200 MB.
CACHE_BYTES = 256 << 20
# Labels are looked through in blocks of so many voxels.
_SCANNED = 1 << 24
# Labelled voxels that are kept to centre patches on, at 8 bytes each: with 1,320 an epoch (the field note's),
# the same one comes again after 794 epochs.
_CENTRES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ReadCost:
    """What a batch of patches takes to read, with each chunk decoded once."""

    chunks: int
    """Chunks, or pages of a `.npy` file; 0 for an array in memory."""
    decoded_bytes: int
    used_bytes: int

    @property
    def amplification(self) -> float | None:
        """Bytes decoded for each byte used; None when none is used."""
        return self.decoded_bytes / self.used_bytes if self.used_bytes else None


class VolumeSource(Source):
    """Patches at fixed places: sample n is the same patch every time, so it can be kept and resumed.

    A sample is `{"image": (C, D, H, W)}`, and with labels `"label"` of the same form, both of the type that
    is stored. A volume has axes (depth, height, width), giving one channel, or (channels, depth, height,
    width). For new patches in every epoch give `epochs`, and the feed `per_epoch=` of `samples_per_epoch`.

    Consecutive samples lie near one another: an order with `shuffle="blocks"` decodes each chunk few times.

    Args:
        volume: a path of a `.npy` file or of the folder of a zarr (v2, v3) or n5 array; or an array.
        labels: the same for labels, of the same depth, height and width.
        patch: depth, height and width of a patch.
        mode: "random", or "grid" for patches that cover the volume in order, the last ones moved back to fit.
        samples_per_epoch: how many random patches there are; as many as a grid without overlap has if None.
        epochs: of so many epochs each has random patches of its own, numbered one epoch after the other. They
            cost nothing before they are used: more than will be trained is no waste, and a training may go on
            for longer then.
        foreground: with labels, this share of random patches is centred on a labelled voxel, drawn from all
            of them with equal chance; near an edge the patch is moved inside. Labels are read once for it.
        foreground_values: the labels that count for it; None for all but 0.
        stride: from one patch of the grid to the next; the patch itself if None.
        seed: of the random places.
        cache_bytes: the most that decoded chunks may take in each process that reads.
    """

    def __init__(
        self,
        volume: str | Path | NDArray[Any] | torch.Tensor,
        *,
        labels: str | Path | NDArray[Any] | torch.Tensor | None = None,
        patch: Sequence[int] = (72, 136, 136),
        mode: Literal["random", "grid"] = "random",
        samples_per_epoch: int | None = None,
        epochs: int = 1,
        foreground: float = 0.33,
        foreground_values: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        seed: int = 0,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.patch = checked_box("patch", patch)
        cache_bytes = checked_bytes("cache_bytes", cache_bytes)
        self._volumes = {"image": describe_volume(volume, "image")}
        if labels is not None:
            self._volumes["label"] = describe_volume(labels, "label")
        _check_fit(self._volumes, self.patch)
        if any(isinstance(each, ChunkedVolume) for each in self._volumes.values()):
            _check_installed()
        space = self._volumes["image"].space
        self._grid: Corners | None = None
        self._random: RandomPlaces | None = None
        if mode == "grid":
            if samples_per_epoch is not None or epochs != 1:
                given = "epochs" if samples_per_epoch is None else "samples_per_epoch"
                raise UsageError(f"{given} is for random patches: a grid has as many as it takes")
            steps = self.patch if stride is None else checked_box("stride", stride)
            self._grid = place_grid(space, self.patch, steps)
        elif mode == "random":
            if stride is not None:
                raise UsageError("stride is for a grid: take mode='grid', or leave stride out")
            count = samples_per_epoch
            if count is not None:
                count = checked_count("samples_per_epoch", count, "patches")
            else:
                count = prod(-(-length // side) for length, side in zip(space, self.patch, strict=True))
            epochs = checked_count("epochs", epochs, "epochs")
            share = checked_share("foreground", foreground, "the patches")
            around, voxels = self._draw_centres(count, epochs, share, foreground_values, seed)
            self._random = RandomPlaces(
                space, self.patch, count, seed=seed, epochs=epochs, around=around, voxels=voxels
            )
        else:
            raise UsageError(f"mode={mode!r}: take 'random' or 'grid'")
        self._fingerprint: str | None = None
        self._kept_as: str | None = None
        self._opened = PerProcess(partial(_Opened, list(self._volumes.values()), cache_bytes))

    def __len__(self) -> int:
        places = self._grid if self._random is None else self._random
        assert places is not None
        return len(places)

    def __repr__(self) -> str:
        image = self._volumes["image"]
        return f"VolumeSource({len(self)} patches of {self.patch} from {image.shape} {image.dtype})"

    def read(self, indices: Indices) -> dict[str, torch.Tensor]:
        """All patches are asked for at once, near ones together, each into its row of the batch."""
        chosen = checked(indices, len(self))
        batch = {name: self._empty(volume, len(chosen)) for name, volume in self._volumes.items()}
        if len(chosen):
            order = np.argsort(self.chunk_of(chosen), kind="stable")
            request = Request(corners=self._corners(chosen), size=self.patch, order=order)
            self._opened.get().read(request, [field.numpy() for field in batch.values()])
        return batch

    def fingerprint(self) -> str:
        """Of the places of the patches, and what is cheap to tell of the files: names, sizes and times."""
        if self._fingerprint is None:
            hashed = hashlib.sha256(f"volume 1 {self.patch}".encode())
            if self._random is not None:
                hashed.update(self._random.digest())
            elif self._grid is not None:
                hashed.update(self._grid.tobytes())
            for name, volume in self._volumes.items():
                hashed.update(f"\0{name}\0{volume.digest()}".encode())
            self._fingerprint = hashed.hexdigest()
        return self._fingerprint

    def kept_as(self) -> str:
        """Of where the volumes are, too: those of one archive may have all else in common."""
        if self._kept_as is None:
            told = (volume.tell_apart() for volume in self._volumes.values())
            self._kept_as = told_apart(self.fingerprint(), *told)
        return self._kept_as

    def corners(self, indices: Indices) -> Corners:
        """Where these patches begin: a row of depth, height and width each."""
        return self._corners(checked(indices, len(self)))

    def covered(self, indices: Indices) -> Corners:
        """Of these patches of a grid, how many voxels from the front an earlier one has too, by axis."""
        if self._grid is None:
            raise UsageError("patches at random overlap as they come: take mode='grid' to know what is new")
        return self._covered[checked(indices, len(self))]

    def chunk_of(self, indices: Indices) -> Indices:
        """The number of the image's chunk that each patch begins in; of a patch-sized cell without chunks."""
        image = self._volumes["image"]
        side = np.array(image.chunk or self.patch)
        grid = -(-np.array(image.space) // side)
        cells = self.corners(indices) // side
        numbers: Indices = (cells[:, 0] * grid[1] + cells[:, 1]) * grid[2] + cells[:, 2]
        return numbers

    def read_cost(self, indices: Indices) -> ReadCost:
        """What these patches take to read as one batch, counted from where they lie; nothing is read."""
        corners = self.corners(indices)
        touched = [volume.count_touched(corners, self.patch) for volume in self._volumes.values()]
        used = [len(corners) * self._empty(volume, 1).nbytes for volume in self._volumes.values()]
        return ReadCost(
            chunks=sum(count for count, _ in touched),
            decoded_bytes=sum(size for _, size in touched),
            used_bytes=sum(used),
        )

    def _empty(self, volume: Volume, count: int) -> torch.Tensor:
        kind = torch_dtype(volume.dtype, volume.name)
        return fresh_batch((count, volume.channels, *self.patch), kind)

    @cached_property
    def _covered(self) -> Corners:
        assert self._grid is not None
        return cover_earlier(self._grid, self.patch)

    def _corners(self, chosen: Indices) -> Corners:
        if self._grid is not None:
            return self._grid[chosen]
        assert self._random is not None
        return self._random.corners(chosen)

    def _draw_centres(
        self, count: int, epochs: int, share: float, values: Sequence[int] | None, seed: int
    ) -> tuple[int, NDArray[np.int64]]:
        """How many patches of an epoch the share puts around labelled voxels; and voxels for all epochs."""
        labels, wanted = self._volumes.get("label"), round(count * share)
        if labels is None or not wanted:
            return 0, np.empty(0, np.int64)
        draw = VoxelDraw(labels.space, min(wanted * epochs, max(wanted, _CENTRES)), seed)
        _scan(labels, draw, values)
        if not draw.seen:
            looked_for = "no voxel but 0" if values is None else f"none of {list(values)}"
            raise SourceBroken(
                f"{labels.name} holds {looked_for}, so no patch can be centred on one. Give foreground=0, "
                "or other labels."
            )
        return wanted, draw.voxels()


class _Opened:
    """The volumes of a source, open in this process."""

    def __init__(self, volumes: list[Volume], cache_bytes: int, *, stay_forkable: bool = False) -> None:
        chunked = {place: each.array for place, each in enumerate(volumes) if isinstance(each, ChunkedVolume)}
        self._chunked = list(chunked)
        self._plain: dict[int, NDArray[Any]] = {}
        self._maps: list[NpyMap] = []
        for place, each in enumerate(volumes):
            if isinstance(each, HeldVolume):
                self._plain[place] = each.values
            elif isinstance(each, MappedVolume):
                self._maps.append(each.file.open())
                self._plain[place] = self._maps[-1].values
        self._reader = (
            open_reader(list(chunked.values()), cache_bytes, stay_forkable=stay_forkable) if chunked else None
        )

    def read(self, request: Request, outs: Sequence[NDArray[Any]]) -> None:
        """Fill an array of (patches, channels, depth, height, width) for each volume."""
        if self._reader is not None:
            self._reader.read(request, [outs[place] for place in self._chunked])
        self._check()
        for place, values in self._plain.items():
            _copy_boxes(values, request, outs[place])
        self._check()

    def _check(self) -> None:
        for mapped in self._maps:
            mapped.check()


def _copy_boxes(values: NDArray[Any], request: Request, out: NDArray[Any]) -> None:
    depth, height, width = request.size
    for number in request.order.tolist():
        z, y, x = request.corners[number].tolist()
        out[number] = values[..., z : z + depth, y : y + height, x : x + width]


def _scan(labels: Volume, draw: VoxelDraw, values: Sequence[int] | None) -> None:
    """Look through all labels, a block at a time, without making this process unfit to fork."""
    opened = _Opened([labels], 0, stay_forkable=True)
    only: Places = np.zeros(1, np.int64)
    for corner, size in cut_blocks(labels.space, labels.chunk or (1, 1, 1), _SCANNED):
        block = np.empty((1, labels.channels, *size), labels.dtype)
        opened.read(Request(corners=np.array([corner]), size=size, order=only), [block])
        labelled = np.not_equal(block[0], 0) if values is None else np.isin(block[0], values)
        draw.add(np.logical_or.reduce(labelled, axis=0), corner)


def _check_fit(volumes: dict[str, Volume], patch: Size) -> None:
    image = volumes["image"]
    if any(side > length for side, length in zip(patch, image.space, strict=True)):
        raise UsageError(
            f"a patch of {patch} does not fit into {image.name}, which is {image.space}: take a smaller patch"
        )
    labels = volumes.get("label")
    if labels is not None and labels.space != image.space:
        raise UsageError(
            f"{labels.name} is {labels.space} and {image.name} is {image.space}: labels must cover the same "
            "voxels"
        )


def _check_installed() -> None:
    if importlib.util.find_spec("tensorstore") is None:
        raise MissingExtra("tensorstore", "volume", "reading a zarr or n5 volume")
