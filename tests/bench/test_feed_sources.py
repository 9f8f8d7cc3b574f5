"""The parts of `stoker bench feed` for sources: their figures, their sets, and small real runs of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.bench import Options, run
from stoker.bench.feed_figures import figures_of
from stoker.bench.feed_images import CLASSES, make_pictures
from stoker.bench.feed_ours import open_epochs
from stoker.bench.feed_page import page
from stoker.bench.feed_volume import PATCH, make_volume
from stoker.bench.loops.feed_peers import patch_copies, pillow_pictures, plain
from stoker.bench.loops.feed_peers.turn import check, read_number
from stoker.bench.result import Result, read_result


def turns(part: str, **rates: float) -> list[dict[str, Any]]:
    """Three turns of a second of each kind, with so many samples of a GB each."""
    return [
        {"part": part, "how": "turn", "turn": number, "kind": kind, "samples": rate, "seconds": 1.0}
        | {"bytes": rate * 1e9, "samples_s": rate}
        for kind, rate in rates.items()
        for number in range(3)
    ]


RUNS = [
    *turns("npy", stoker=8, limit_take=10, limit_index_select=9, peer_dataloader_gather=4),
    *turns("torch", stoker=8, default=6, limit=16, peer_dataloader=4),
    *turns("images", stoker=9, ram=90, limit=18, peer_dataloader=3, peer_ffcv=6),
    *turns("volume", stoker=20, disk=60, whole=80, limit=100, peer_dataloader_zarr=10,
           disk_peer_monai_persistent=30, memory_peer_monai_cache=40),
    *turns("images_gpu", stoker=30, cpu=20, limit=40, peer_dataloader_pillow=10),
]  # fmt: skip


def test_each_source_is_held_against_its_best_peer_and_its_limit() -> None:
    """A volume's caches are held against caches of the same kind, and not against a reader of chunks."""
    asked = {
        "npy_ratio_peer": 2, "npy_ratio_limit": 0.8,
        "torch_ratio_peer": 2, "torch_ratio_peer_default": 1.5, "torch_ratio_limit": 0.5,
        "images_ratio_peer": 1.5, "images_ratio_limit": 0.5, "images_s_ram": 90,
        "volume_ratio_peer": 2, "volume_ratio_peer_disk": 2, "volume_ratio_peer_whole": 2,
        "volume_ratio_limit_whole": 0.8, "volume_patches_s_peer_memory_monai_cache": 40,
        "images_gpu_ratio_peer": 3, "images_gpu_ratio_limit": 0.75,
    }  # fmt: skip
    figures = figures_of(RUNS)
    assert asked == {name: figures[name] for name in asked}


def test_the_page_shows_every_source() -> None:
    """With its rates, its peers' and its ratios."""
    made = Result(bench="feed", hardware="cpu", figures=figures_of(RUNS), runs=RUNS, versions={})
    text = page([made])
    assert "| images: over the best peer | 1.50 (1.50 to 1.50) |" in text
    assert "| limit: decoding alone, files in memory | 18 (18 to 18) |" in text
    assert "| memory_monai_cache | 40 (40 to 40) |" in text
    assert "| Feed, decoded by nvJPEG | 30 (30 to 30) |" in text


def test_pictures_tell_their_numbers_through_every_decoder(tmp_path: Path) -> None:
    """An epoch of the feed and one of the DataLoader bring each picture once, with its class."""
    make_pictures(tmp_path / "data", 40)
    plan: dict[str, Any] = {"data": str(tmp_path / "data"), "batch": 16}
    mine = open_epochs(way="images", **plan)
    peer = pillow_pictures.open_epochs(way="folders", work=str(tmp_path), workers=0, **plan)
    assert check(mine, CLASSES) == check(peer, CLASSES) == {"samples": 40}


def test_patches_tell_their_numbers(tmp_path: Path) -> None:
    """From the zarr volume by the feed, with a cache on disk too, as from the volume in memory."""
    make_volume(tmp_path / "data", (128, 192, 192), 12)
    plan: dict[str, Any] = {"data": str(tmp_path / "data"), "batch": 5}
    ours = {"way": "volume", "patches": 12, "cache_bytes": 1 << 26, **plan}
    epochs = [
        open_epochs(**ours),
        open_epochs(work=str(tmp_path), **ours),
        patch_copies.open_epochs(size=list(PATCH), workers=2, **plan),
    ]
    assert [check(epoch) for epoch in epochs] == [{"samples": 12}] * 3


def test_a_dataset_asked_alone_gives_every_sample(tmp_path: Path) -> None:
    """The limit of `torch` reads what a loader reads."""
    (tmp_path / "files").mkdir()
    for number in range(5):
        row = np.array([number], np.int64).view(np.uint8)
        np.save(tmp_path / "files" / f"{number:06d}.npy", row)
    np.save(tmp_path / "labels.npy", np.arange(5))
    plan: dict[str, Any] = {"data": str(tmp_path), "batch": 2, "workers": 0}
    alone = plain.open_epochs(way="alone", **plan)
    assert check(alone) == check(plain.open_epochs(way="files", **plan)) == {"samples": 5}


@pytest.mark.parametrize(
    "label", [7, np.int64(7), torch.tensor(7), torch.tensor([7])], ids=["int", "numpy", "torch", "column"]
)
def test_a_label_is_read_whatever_its_form(label: Any) -> None:
    """FFCV gives a column of them."""
    assert read_number(label) == 7


@pytest.mark.slow
@pytest.mark.parametrize("part", ["npy", "torch", "images", "volume"])
def test_a_source_s_part_measures_and_writes(tmp_path: Path, part: str) -> None:
    """The smallest real run, without peers' environments, gives the rate, the limit's and their ratio."""
    words = ["--part", part, "--seconds", "0", "--size", "1", "--no-peers", "--json"]
    command = [sys.executable, "-m", "stoker", "bench", "feed", "--out", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["results"]
    figures = read_result(Path(told["file"])).figures
    assert [name for name in figures if name.startswith(f"{part}_ratio_limit")]


@pytest.mark.gpu
def test_pictures_are_measured_onto_a_gpu(tmp_path: Path) -> None:
    """By nvJPEG and by the CPU, beside DataLoaders; every picture is checked to come once with its class."""
    ((_, result),) = run("feed", Options(device="cuda", parts=["images"], seconds=0), tmp_path)
    asked = {"images_gpu_s", "images_gpu_s_cpu", "images_gpu_s_limit", "images_gpu_ratio_peer"}
    assert asked <= set(result.figures)
