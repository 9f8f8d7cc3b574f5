"""Made scrolls: volumes like a scanned papyrus roll, with labels, as zarr v3 in the layout of the real set.

    root/volumes/NAME.zarr    uint8, (depth, height, width): what the scanner saw
    root/labels/NAME.zarr     uint8, the same shape: 0 air, 1 sheet, 2 not labelled

A sheet is wound to a spiral that is squeezed and wavers with depth. It has fibres and holes, dust as bright
as papyrus lies between the turns, and brightness drifts from slice to slice. The crushed core and a sector of
every slice are left unlabelled, as annotators leave them.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import MissingExtra, SourceBroken, UsageError
from stoker.feed.sources.volume_arrays import describe_volume

AIR, SHEET, UNLABELLED = 0, 1, 2
_CHUNK = 64
_Slice: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Scroll:
    """One volume of a set and its labels, on disk."""

    name: str
    volume: Path
    labels: Path


@dataclass(frozen=True, kw_only=True)
class MadeScrolls:
    """What to make: the same settings give the same voxels.

    >>> MadeScrolls(volumes=1, shape=(64, 96, 96)).names
    ('scroll_000',)
    """

    volumes: int = 4
    """How many; the last one of a set is kept for validation."""
    shape: tuple[int, int, int] = (144, 272, 272)
    """Depth, height and width of each, in voxels."""
    pitch: float = 15.0
    """From one turn of the sheet to the next, in voxels."""
    thickness: float = 5.0
    """Of the sheet, in voxels."""
    noise: float = 18.0
    """The scanner's, in grey levels of 255."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.volumes < 1:
            raise UsageError(f"volumes is {self.volumes}: make at least 1")
        if len(self.shape) != 3 or min(self.shape) < 8:
            raise UsageError(f"shape is {self.shape}: give depth, height and width, each at least 8")
        if self.noise < 0 or self.seed < 0:
            raise UsageError(f"noise is {self.noise:g} and seed {self.seed}: both must be 0 or more")
        if not 1 <= self.thickness < self.pitch:
            raise UsageError(
                f"thickness is {self.thickness} and pitch {self.pitch}: a sheet is at least 1 voxel thick, "
                "and thinner than the way from one turn to the next"
            )

    @property
    def name(self) -> str:
        """A folder's name that tells all settings."""
        shape = "x".join(str(side) for side in self.shape)
        grain = f"{self.pitch:g}pitch_{self.thickness:g}thick_{self.noise:g}noise"
        return f"vesuvius_{self.volumes}x{shape}_{grain}_seed{self.seed}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the volumes."""
        return tuple(f"scroll_{number:03d}" for number in range(self.volumes))


def find_scrolls(root: Path) -> list[Scroll]:
    """The volumes of a set, each with its labels, by name."""
    volumes = {path.stem: path for path in sorted((root / "volumes").glob("*.zarr"))}
    labels = {path.stem: path for path in sorted((root / "labels").glob("*.zarr"))}
    if not volumes:
        raise SourceBroken(
            f"no volume lies under {root}: it must hold volumes/NAME.zarr and labels/NAME.zarr "
            "(or leave data out, and scrolls are made)"
        )
    lone = sorted(volumes.keys() ^ labels.keys())
    if lone:
        raise SourceBroken(f"{root} has either the volume or the labels of {', '.join(lone)}, and not both")
    for path in (*volumes.values(), *labels.values()):
        kind = describe_volume(path, path.name).dtype
        if kind != np.uint8:
            raise SourceBroken(f"{path} holds {kind}: scale it to 0..255 and store it as uint8")
    return [Scroll(name=name, volume=volumes[name], labels=labels[name]) for name in volumes]


def make_scrolls(root: Path, made: MadeScrolls) -> list[Scroll]:
    """Write what of the set is not there yet; each array appears whole or not at all."""
    for number, name in enumerate(made.names):
        # The labels last: a volume whose maker was killed before them is made again with them.
        ready = root / "labels" / f"{name}.zarr"
        if not ready.exists():
            _write_pair(root, name, made, number)
    return find_scrolls(root)


def draw_scroll(made: MadeScrolls, number: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """The slices of one scroll from the top, each with its labels; a slice hangs on nothing but its place."""
    depth, height, width = made.shape
    shape = _Shape(made, number)
    dust = _draw_dust(made, number)
    y, x = np.meshgrid(np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32), indexing="ij")
    for z in range(depth):
        noise = np.random.default_rng([made.seed, number, z])
        distance, where = shape.slice(y, x, z)
        sheet = where.wound & ~where.torn & (np.abs(distance) < made.thickness / 2)
        grey = np.full((height, width), 62.0, np.float32)
        grey[sheet] = 150 + where.fibres[sheet]
        grey[where.core] = 118 + 30 * np.sin(0.9 * where.radius[where.core] + 0.2 * z)
        _add_dust(grey, dust, z, sheet)
        grey = grey * (1 + 0.06 * np.sin(0.21 * z + number)) + noise.normal(0, made.noise, grey.shape)
        label = np.where(where.core | where.unlabelled, UNLABELLED, np.where(sheet, SHEET, AIR))
        yield grey.clip(0, 255).astype(np.uint8), label.astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class _Where:
    """What lies where in one slice."""

    radius: _Slice
    fibres: _Slice
    wound: NDArray[np.bool_]
    torn: NDArray[np.bool_]
    core: NDArray[np.bool_]
    unlabelled: NDArray[np.bool_]


class _Shape:
    """The winding of one scroll: how it wavers, drawn once."""

    def __init__(self, made: MadeScrolls, number: int) -> None:
        draw = np.random.default_rng([made.seed, number])
        self._made = made
        self._squeeze = draw.uniform(1.0, 1.35)
        self._turn = draw.uniform(0, 2 * np.pi)
        self._drift = draw.uniform(0.02, 0.05, 2)
        self._phases = draw.uniform(0, 2 * np.pi, 9)

    def slice(self, y: _Slice, x: _Slice, z: int) -> tuple[_Slice, _Where]:
        """How far each voxel lies from the middle of the nearest sheet, in voxels, and what is there."""
        made, p = self._made, self._phases
        _, height, width = made.shape
        size = min(height, width)
        centre_y = height / 2 + 0.04 * size * np.sin(self._drift[0] * z + p[0])
        centre_x = width / 2 + 0.04 * size * np.sin(self._drift[1] * z + p[1])
        down, right = (y - centre_y) * self._squeeze, x - centre_x
        radius = np.hypot(down, right)
        angle = np.arctan2(down, right)
        waved = radius * (
            1 + 0.05 * np.sin(3 * angle + 0.03 * z + p[2]) + 0.03 * np.sin(5 * angle - 0.05 * z + p[3])
        )
        turns = waved / made.pitch - (angle + self._turn) / (2 * np.pi)
        nearest = np.round(turns)
        distance = ((turns - nearest) * made.pitch).astype(np.float32)
        along = (nearest + (angle + np.pi) / (2 * np.pi)) * 5.3  # grows along the sheet, without a jump
        torn = np.sin(along + p[4]) * np.sin(0.11 * z + 0.37 * along + p[5]) > 0.86
        fibres = 14 * np.sin(0.9 * z + p[6]) + 14 * np.sin(0.7 * radius * angle + p[7])
        inner, outer = 0.9 * made.pitch, 0.47 * size
        hidden = np.mod(angle + 0.01 * z + p[8], 2 * np.pi) < 0.4
        wound = (waved >= inner) & (waved <= outer)
        return distance, _Where(
            radius=radius,
            fibres=fibres.astype(np.float32),
            wound=wound,
            torn=torn,
            core=waved < inner,
            unlabelled=hidden & wound,
        )


def _draw_dust(made: MadeScrolls, number: int) -> NDArray[np.float64]:
    """Grains: depth, height, width, radius."""
    draw = np.random.default_rng([made.seed, number, -1 % 2**32])
    count = max(1, int(np.prod(made.shape) / 9_000))
    return np.column_stack(
        [draw.uniform(0, side, count) for side in made.shape] + [draw.uniform(1.5, 3.5, count)]
    )


def _add_dust(grey: _Slice, dust: NDArray[np.float64], z: int, sheet: NDArray[np.bool_]) -> None:
    """The grains that this slice cuts, where there is no sheet."""
    for depth, height, width, radius in dust[np.abs(dust[:, 0] - z) < dust[:, 3]].tolist():
        reach = int(radius) + 1
        top, left = max(0, int(height) - reach), max(0, int(width) - reach)
        box = (slice(top, int(height) + reach + 1), slice(left, int(width) + reach + 1))
        y, x = np.ogrid[top : top + grey[box].shape[0], left : left + grey[box].shape[1]]
        inside = (y - height) ** 2 + (x - width) ** 2 + (z - depth) ** 2 < radius**2
        grey[box][inside & ~sheet[box]] = 155


def _write_pair(root: Path, name: str, made: MadeScrolls, number: int) -> None:
    finals = [root / kind / f"{name}.zarr" for kind in ("volumes", "labels")]
    parts = [final.with_suffix(".part") for final in finals]
    for part in parts:
        part.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
    arrays = [create_zarr(part, made.shape, "uint8") for part in parts]
    slab: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
    for z, pair in enumerate(draw_scroll(made, number)):
        slab.append(pair)
        if len(slab) == _CHUNK or z == made.shape[0] - 1:
            for array, slices in zip(arrays, zip(*slab, strict=True), strict=True):
                array[z + 1 - len(slab) : z + 1].write(np.stack(slices)).result()
            slab = []
    for part, final in zip(parts, finals, strict=True):
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)


def create_zarr(path: Path, shape: tuple[int, ...], dtype: str) -> Any:
    """A new zarr v3 array in chunks of 64 cubed, packed by zstd: a tensorstore to write to."""
    try:
        import tensorstore
    except ImportError as missing:
        raise MissingExtra("tensorstore", "volume", "writing a zarr volume") from missing
    return tensorstore.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(path)},
            "metadata": {
                "shape": shape,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [_CHUNK] * len(shape)}},
                "data_type": dtype,
                "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}],
            },
        },
        create=True,
    ).result()
