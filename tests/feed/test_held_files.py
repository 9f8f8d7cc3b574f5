"""Compressed images that wait in memory: the same pixels, from files that are read once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from feed.pictures import write_classes
from stoker import Feed, ImageSource
from stoker.errors import SourceChanged
from stoker.feed.choice import Room
from stoker.feed.held_files import HeldFiles
from stoker.feed.holding import Holding

SIZE = (96, 128)
COUNT = 23


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of JPEG and PNG files."""
    write_classes(tmp_path / "set", {"cats": 12, "dogs": 11})
    return tmp_path / "set"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the files, but not for their pixels."""
    room = COUNT * 3 * SIZE[0] * SIZE[1]
    monkeypatch.setattr(Holding, "_room", lambda self: Room(ram=room))


def pixels_of(feed: Any) -> list[torch.Tensor]:
    return [torch.cat([image.flatten(1), label[:, None].to(torch.uint8)], 1) for image, label in feed]


@pytest.mark.usefixtures("little_memory")
def test_files_wait_where_pixels_do_not_fit(folder: Path) -> None:
    """They are read once: the second epoch needs no file any more, and has the same pixels."""
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "device": "cpu"}
    plain = Feed(ImageSource(folder, size=SIZE), tier="source", **options)
    expected = [pixels_of(plain), pixels_of(plain)]
    feed = Feed(ImageSource(folder, size=SIZE), **options)
    assert feed.tier == "source"
    assert "does not fit" in feed.why
    assert feed.why.endswith("; the files are held in RAM as they are (92.0 KiB)")
    first = pixels_of(feed)
    shutil.rmtree(folder)
    assert all(map(torch.equal, first, expected[0]))
    assert all(map(torch.equal, pixels_of(feed), expected[1]))
    feed.close()


def test_files_that_do_not_fit_either_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And read anew each time."""
    monkeypatch.setattr(Holding, "_room", lambda self: Room(ram=1000))
    feed = Feed(ImageSource(folder, size=SIZE), batch_size=5, device="cpu")
    assert feed.why.endswith("; nor do the files as they are: 92.0 KiB")
    assert len(pixels_of(feed)) == 5
    feed.close()


def test_pixels_that_fit_are_held_instead(folder: Path) -> None:
    """They need no decoding."""
    feed = Feed(ImageSource(folder, size=SIZE), batch_size=5, device="cpu")
    assert (feed.tier, "as they are" in feed.why) == ("ram", False)
    feed.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_share_them(folder: Path, start: str) -> None:
    """What one has read, the others have: workers read nothing any more."""
    source = ImageSource(folder, size=SIZE)
    expected, labels = source.read(np.arange(COUNT))
    assert "held in RAM" in source.hold_files(1 << 30)
    source.read(np.arange(COUNT))
    shutil.rmtree(folder)
    loader = DataLoader(source, batch_size=8, num_workers=2, multiprocessing_context=start)
    images = list(loader)
    assert torch.equal(torch.cat([image for image, _ in images]), expected)
    assert torch.equal(torch.cat([label for _, label in images]), labels)
    source.let_files_go()


def test_a_file_named_twice_and_in_any_order(folder: Path) -> None:
    """Held or not, and in part."""
    source = ImageSource(folder, size=SIZE)
    wanted = [np.array([3, 3, 22, 0]), np.array([1, 0, 3, 1]), np.arange(COUNT)[::-1].copy()]
    expected = [source.read(numbers)[0] for numbers in wanted]
    source.hold_files(1 << 30)
    for _ in range(2):
        for numbers, images in zip(wanted, expected, strict=True):
            assert torch.equal(source.read(numbers)[0], images)
    raw = ImageSource(folder, decode=False)
    bytes_of = raw.read(np.arange(COUNT))[0]
    raw.hold_files(1 << 30)
    assert raw.read(np.arange(COUNT))[0] == bytes_of
    assert raw.read(np.arange(COUNT))[0] == bytes_of
    source.let_files_go()
    raw.let_files_go()


def test_a_file_that_changed_is_told(folder: Path) -> None:
    """Its place in memory was for another length."""
    source = ImageSource(folder, size=SIZE)
    source.hold_files(1 << 30)
    path = folder / source.key(4)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(SourceChanged, match=r"bytes where \d+ were listed: .* make the source again"):
        source.read(np.array([4]))
    source.let_files_go()
    assert not isinstance(source._store, HeldFiles)
