"""What a batch of patches takes to read: counted exactly, and no more than that is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feed.volumes import is_right, make_values, request_for, write_volume
from stoker.feed import Feed
from stoker.feed.sources.chunk_reader import ReaderApart
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.sources.volume_arrays import ChunkedVolume, describe_volume


def test_read_amplification_is_counted_exactly(tmp_path: Path) -> None:
    """Whole chunks, each once a batch, of the image and the labels, over the bytes handed out."""
    image = write_volume(tmp_path / "image", np.zeros((16, 64, 64), np.uint16), "zarr2", (8, 16, 16))
    label = write_volume(tmp_path / "label", np.zeros((16, 64, 64), np.uint8), "zarr3-sharded", (16, 32, 32))
    source = VolumeSource(image, labels=label, patch=(8, 16, 16), mode="grid", stride=(8, 8, 8))
    cost = source.read_cost(np.array([0]))  # on one chunk of the image exactly
    assert (cost.chunks, cost.decoded_bytes, cost.used_bytes) == (
        1 + 1,
        8 * 16 * 16 * 2 + 16 * 32 * 32,
        8 * 16 * 16 * 3,
    )
    cost = source.read_cost(np.array([1]))  # half a chunk on, so in two of the image
    assert (cost.chunks, cost.decoded_bytes) == (2 + 1, 2 * 8 * 16 * 16 * 2 + 16 * 32 * 32)
    cost = source.read_cost(np.array([0, 1, 1, 8]))  # at y 0, x 0, 8, 8; and y 8, x 8: four of the image
    assert source.corners(np.array([8])).tolist() == [[0, 8, 8]]
    assert (cost.chunks, cost.decoded_bytes) == (4 + 1, 4 * 8 * 16 * 16 * 2 + 16 * 32 * 32)
    assert cost.amplification == cost.decoded_bytes / (4 * 8 * 16 * 16 * 3)
    assert source.read_cost(np.array([], dtype=np.int64)).amplification is None


def test_read_amplification_of_channels_pages_and_memory(tmp_path: Path) -> None:
    """Every chunk of channels counts; of a .npy file its pages; of an array nothing but what is used."""
    values = np.zeros((5, 16, 64, 64), np.uint8)
    path = write_volume(tmp_path / "c", values, "zarr2", (8, 16, 16))
    described = json.loads((path / ".zarray").read_text())
    described["chunks"][0] = 2
    (path / ".zarray").write_text(json.dumps(described))
    grid: dict[str, Any] = {"patch": (8, 16, 16), "mode": "grid"}
    cost = VolumeSource(path, **grid).read_cost(np.array([0, 1]))
    assert (cost.chunks, cost.decoded_bytes) == (2 * 3, 2 * 3 * 2 * 8 * 16 * 16)
    # Rows of 64 bytes, 16 of them in a row: 1 KB of a slice of 4 KB, after a header of 128 bytes.
    mapped = VolumeSource(write_volume(tmp_path / "m", values[0], "npy"), **grid)
    assert (mapped.read_cost(np.array([0])).chunks, mapped.read_cost(np.array([0, 1])).chunks) == (8, 8)
    # At the end of their slices, rows go on into the page where the next slice begins.
    assert mapped.read_cost(np.array([12])).chunks == 8 + 1
    assert mapped.read_cost(np.array([0])).amplification == 8 * 4096 / (8 * 16 * 16)
    assert VolumeSource(values, **grid).read_cost(np.arange(3)).amplification == 1.0


def test_a_chunk_is_decoded_once_a_batch(tmp_path: Path) -> None:
    """Patches that share chunks read each file once: asked of the kernel, in a process of its own."""
    values = make_values((32, 64, 64), "uint8")
    path = write_volume(tmp_path / "image", values, "zarr2", (16, 32, 32))
    source = VolumeSource(path, patch=(16, 32, 32), samples_per_epoch=60)
    numbers = np.arange(60)
    described = describe_volume(path, "image")
    assert isinstance(described, ChunkedVolume)
    reader = ReaderApart([described.array], 1 << 24)
    request = request_for(source, numbers)
    out = np.empty((60, 1, *source.patch), np.uint8)
    before = read_calls(reader._process.pid)
    reader.read(request, [out])
    first = read_calls(reader._process.pid) - before
    reader.read(request, [out])
    assert source.read_cost(numbers).chunks == 8
    again = read_calls(reader._process.pid) - before - first
    # A file of zarr 2 is read by one call; the rest are the pipe's, the same both times.
    assert first - again == 8
    assert is_right(source, {"image": torch.from_numpy(out)}, numbers, image=values)


def test_what_a_batch_of_patches_takes_to_read_is_told(tmp_path: Path) -> None:
    """Once some were read: what their chunks or pages have in bytes, over what is used of them."""
    path = tmp_path / "volume.npy"
    np.save(path, np.zeros((16, 64, 64), np.uint8))
    source = VolumeSource(path, patch=(8, 16, 16), mode="grid")
    feed = Feed(source, 4, device="cpu", tier="source")
    assert "a batch reads" not in feed.why
    next(iter(feed))
    cost = source.read_cost(np.arange(4))
    assert cost.amplification is not None
    assert f"a batch reads 32.0 KiB for 8.0 KiB used, {cost.amplification:.1f} times as much" in feed.why
    feed.close()


def test_of_patches_in_memory_no_cost_is_told() -> None:
    """There is nothing to read but what is used."""
    source = VolumeSource(np.ones((8, 8, 8), np.uint8), patch=(4, 4, 4), mode="grid")
    feed = Feed(source, 4, device="cpu", tier="source")
    assert all(torch.is_tensor(batch["image"]) for batch in feed)
    assert "a batch reads" not in feed.why
    feed.close()


def read_calls(pid: int) -> int:
    """How often a process has called read."""
    told = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(told["syscr"])
