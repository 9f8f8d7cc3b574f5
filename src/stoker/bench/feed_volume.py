"""Patches of a zarr volume and its labels: the part `volume` of `stoker bench feed`."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.bench.children import say
from stoker.bench.contest import Contender, Contest, ours, peer_of, worker_plans
from stoker.bench.feed_ours import volume_source
from stoker.bench.peers import Peer, find_peer
from stoker.errors import MissingExtra
from stoker.feed.sources.volume import CACHE_BYTES

PATCHES, BATCH, PATCH = 128, 8, (72, 136, 136)
# A byte a voxel: 536 MB, and as much of labels; decoded chunks of a quarter of both fit the source's cache.
SHAPE, _CHUNK = (512, 1024, 1024), (64, 64, 64)
_STRETCH = 1.0
# Of a peer, its kind, its distribution in the environment of MONAI, its script, its way.
_PEERS = (
    ("peer_dataloader_zarr", "zarr", "zarr_patches", ""),
    ("disk_peer_monai_persistent", "monai", "monai_patches", "persistent"),
    ("memory_peer_monai_cache", "monai", "monai_patches", "cache"),
)


def measure_volume(
    folder: Path, *, share: float, seconds: float, peers: bool
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The runs, and the versions of the peers in them."""
    data, work = folder / "data", folder / "work"
    depth = max(2, round(SHAPE[0] * share / _CHUNK[0])) * _CHUNK[0]
    make_volume(data, (depth, *SHAPE[1:]), PATCHES)
    work.mkdir()
    contest = Contest("volume", folder, stretch_s=_STRETCH, expected=PATCHES, tuning_turns=2)
    plan: dict[str, Any] = {"data": str(data), "batch": BATCH}
    mine = {"way": "volume", "patches": PATCHES, **plan}
    sized = {"size": PATCH, **plan}
    copies = [{"workers": count, **sized} for count in sorted({1, os.cpu_count() or 1})]
    contenders = [
        ours("stoker", {"cache_bytes": CACHE_BYTES, **mine}),
        ours("whole", {"cache_bytes": 4 << 30, **mine}),
        ours("disk", {"cache_bytes": CACHE_BYTES, "work": str(work), **mine}),
        Contender(kind="limit", module="patch_copies", plans=copies, needed=True),
    ]
    versions: dict[str, str] = {}
    for kind, distribution, module, way in _PEERS if peers else ():
        found = find_peer("monai", distribution=distribution)
        if isinstance(found, Peer):
            versions[distribution] = found.version
        plans = partial(worker_plans, **sized)
        made = peer_of(found, kind, module, plans(way=way, work=str(work)) if way else plans())
        contest.leave_out(kind, made) if isinstance(made, str) else contenders.append(made)
    return contest.hold(contenders, seconds), versions


def make_volume(folder: Path, shape: tuple[int, int, int], patches: int) -> None:
    """The volume and its labels as zarr and as `.npy`, and the patches' corners.

    The first 8 voxels of a patch hold its number, in both.
    """
    say(f"volume: {shape}, and labels, in chunks of {_CHUNK}")
    folder.mkdir()
    image, label = _draw(shape)
    for name, values in (("image", image), ("label", label)):
        _write(folder / f"{name}.zarr", values)
    corners = volume_source(str(folder), patches).corners(np.arange(patches))
    for number, (z, y, x) in enumerate(corners.tolist()):
        for values in (image, label):
            values[z, y, x : x + 8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
    for name, values in (("image", image), ("label", label)):
        _write(folder / f"{name}.zarr", values)
        np.save(folder / f"{name}.npy", values)
    np.save(folder / "corners.npy", corners)


def _draw(shape: tuple[int, int, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A scan's look: density that changes slowly, with grain; labels where it is highest."""
    chance = np.random.default_rng(0)
    coarse = chance.integers(20, 200, [side // 16 for side in shape], dtype=np.uint8)
    smooth = coarse.repeat(16, 0).repeat(16, 1).repeat(16, 2)
    label = (smooth > 150).astype(np.uint8)
    grain = chance.integers(0, 24, (64, *shape[1:]), dtype=np.uint8)
    for begin in range(0, shape[0], 64):
        smooth[begin : begin + 64] += grain
    return smooth, label


def _write(path: Path, values: NDArray[np.uint8]) -> None:
    try:
        import tensorstore  # which machines that measure a GPU alone need not have
    except ImportError as missing:
        raise MissingExtra("tensorstore", "volume", "making a volume to measure") from missing

    metadata = {
        "shape": values.shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": _CHUNK}},
        "data_type": "uint8",
        "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, "metadata": metadata}
    tensorstore.open(spec, create=True, delete_existing=True).result()[...].write(values).result()
