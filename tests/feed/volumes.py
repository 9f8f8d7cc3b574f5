"""Volumes on disk for tests, in every form that can be read, written by tensorstore."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import torch
from numpy.typing import NDArray

from stoker.feed.sources.chunk_reader import Request
from stoker.feed.sources.volume import VolumeSource

PATCH = (6, 10, 12)
FORMS = ("zarr2", "zarr3", "zarr3-sharded", "zarr3-turned", "n5", "npy")


def make_values(shape: tuple[int, ...] = (20, 33, 41), dtype: str = "uint16") -> NDArray[Any]:
    """Values that differ from voxel to voxel."""
    return (np.arange(np.prod(shape)) * 7919 % 60013).reshape(shape).astype(dtype)


def write_volume(path: Path, values: NDArray[Any], form: str, chunk: tuple[int, ...] = (8, 16, 16)) -> Path:
    """An array on disk in this form."""
    if form == "npy":
        path = path.with_suffix(".npy")
        np.save(path, values)
        return path
    chunk = values.shape[: values.ndim - 3] + chunk
    driver, metadata = _metadata(values, form, chunk)
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}, "metadata": metadata}
    store = tensorstore.open(spec, create=True).result()
    (store.T if form == "n5" else store)[...].write(values).result()
    return path


def _metadata(values: NDArray[Any], form: str, chunk: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    if form == "zarr2":
        return "zarr", {
            "shape": values.shape,
            "chunks": chunk,
            "dtype": values.dtype.str,
            "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        }
    if form == "n5":
        return "n5", {
            "dimensions": values.shape[::-1],
            "blockSize": chunk[::-1],
            "dataType": values.dtype.name,
            "compression": {"type": "gzip"},
        }
    codecs: list[dict[str, Any]] = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]
    outer = chunk
    if form != "zarr3":
        outer = (*chunk[:-3], *(2 * side for side in chunk[-3:]))
        inner = chunk
        before: list[dict[str, Any]] = []
        if form == "zarr3-turned":
            inner = chunk[::-1]
            order = list(range(values.ndim))[::-1]
            before = [{"name": "transpose", "configuration": {"order": order}}]
        sharding = {"chunk_shape": inner, "codecs": codecs}
        codecs = [*before, {"name": "sharding_indexed", "configuration": sharding}]
    return "zarr3", {
        "shape": values.shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "data_type": values.dtype.name,
        "codecs": codecs,
    }


def make_labels() -> NDArray[np.uint8]:
    """A few labelled voxels: 1 in one place, 2 in two others, one of them at the very edge."""
    labels = np.zeros((20, 33, 41), np.uint8)
    labels[3, 20, 30] = 1
    labels[10:12, 5, 6] = 2
    labels[19, 32, 40] = 2
    return labels


def cut(values: NDArray[Any], corner: NDArray[np.int64], patch: tuple[int, ...]) -> torch.Tensor:
    """The patch at a corner, by numpy alone."""
    box: Any = tuple(slice(low, low + side) for low, side in zip(corner.tolist(), patch, strict=True))
    found = values[(Ellipsis, *box)]
    return torch.from_numpy(np.ascontiguousarray(found if found.ndim == 4 else found[None]))


def is_right(source: VolumeSource, batch: dict[str, torch.Tensor], numbers: Any, **volumes: Any) -> bool:
    """Whether each field holds the patches of these samples."""
    corners = source.corners(np.asarray(numbers))
    return list(batch) == list(volumes) and all(
        torch.equal(batch[name], torch.stack([cut(values, corner, source.patch) for corner in corners]))
        for name, values in volumes.items()
    )


def request_for(source: VolumeSource, numbers: NDArray[np.int64]) -> Request:
    """What the source would ask of a reader for these samples."""
    order = np.argsort(source.chunk_of(numbers), kind="stable")
    return Request(corners=source.corners(numbers), size=source.patch, order=order)
