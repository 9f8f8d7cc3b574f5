"""Patches of scrolls: the same from disk, from RAM and cut on the device."""

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.errors import UsageError
from stoker.feed.choice import Room
from stoker.feed.transforms import VolumeTransform
from stoker.train.task import World
from stoker.workloads.vesuvius.need import measure_step
from stoker.workloads.vesuvius.residence import Residence, choose_home, open_feed, settle
from stoker.workloads.vesuvius.scrolls import SHEET, MadeScrolls, Scroll, make_scrolls
from stoker.workloads.vesuvius.source import HeldScrolls, ScrollSource, read_middle
from stoker.workloads.vesuvius.unet import UNet3d

PATCH = (8, 16, 16)
CPU = torch.device("cpu")
GB = 10**9


@pytest.fixture(scope="module")
def scrolls(tmp_path_factory: pytest.TempPathFactory) -> list[Scroll]:
    return make_scrolls(tmp_path_factory.mktemp("scrolls"), MadeScrolls(volumes=2, shape=(20, 48, 56)))


def source_of(scrolls: list[Scroll], samples: int = 12) -> ScrollSource:
    return ScrollSource.at_random(scrolls, patch=PATCH, samples=samples, foreground=0.5, seed=3)


def batches_of(source: ScrollSource, residence: Residence, world: World | None = None) -> list[Any]:
    feed = open_feed(
        source, residence, VolumeTransform(field="image"),
        world=world or World(), device=CPU, batch_size=4, shuffle=True, seed=5,
    )  # fmt: skip
    taken = [batch for _ in range(2) for batch in feed]
    feed.close()
    return taken


def test_patches_are_the_same_wherever_the_volumes_are(scrolls: list[Scroll]) -> None:
    """From disk, cut in RAM, and cut by the transform: two epochs of batches, equal to the bit."""
    source = source_of(scrolls)
    held = HeldScrolls.load(scrolls, CPU)
    told = [
        batches_of(source, Residence(home="disk", why="")),
        batches_of(source, Residence(home="ram", why="", held=held)),
        batches_of(source, Residence(home="vram", why="", held=held)),
    ]
    assert len(told[0]) == 6
    for disk, ram, vram in zip(*told, strict=True):
        for name in ("image", "label"):
            assert torch.equal(disk[name], ram[name])
            assert torch.equal(disk[name], vram[name])


def test_a_feed_goes_on_where_volumes_are_held_elsewhere(scrolls: list[Scroll]) -> None:
    """A state taken with the volumes on disk is gone on from with them in memory."""
    source, transform = source_of(scrolls), VolumeTransform(field="image")
    options: dict[str, Any] = {"world": World(), "device": CPU, "batch_size": 4, "shuffle": True}
    first = open_feed(source, Residence(home="disk", why=""), transform, **options)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    expected = next(batches)
    held = Residence(home="vram", why="", held=HeldScrolls.load(scrolls, CPU))
    second = open_feed(source, held, transform, **options)
    second.load_state_dict(state)
    assert torch.equal(next(iter(second))["image"], expected["image"])
    first.close()
    second.close()


@pytest.mark.parametrize("home", ["ram", "disk"])
def test_volumes_that_must_leave_the_device_leave_the_batches_as_they_were(
    scrolls: list[Scroll], home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an epoch; the feed says where they are then and why."""
    source = source_of(scrolls)
    expected = batches_of(source, Residence(home="disk", why=""))[:3]
    feed = open_feed(
        source, Residence(home="vram", why="", held=HeldScrolls.load(scrolls, CPU)),
        VolumeTransform(field="image"), world=World(), device=CPU, batch_size=4, shuffle=True, seed=5,
    )  # fmt: skip
    free, asked = Room(ram=GB if home == "ram" else 0), []

    def find_room(device: torch.device, ranks: int = 1) -> Room:
        asked.append(ranks)
        return free

    monkeypatch.setattr("stoker.workloads.vesuvius.residence.find_room", find_room)
    batches = iter(feed)
    found = [next(batches)]
    assert feed.tier == "vram"
    assert feed.on_device > 0
    feed.shrink("a step ran out")
    assert feed.on_device == 0
    assert feed.tier == ("ram" if home == "ram" else "source")
    assert "left vram: a step ran out" in feed.why
    found += list(batches)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["image"], other["image"])
    feed.close()
    # Each of several ranks has its part of the host's memory, as when the volumes were first held.
    ranks = open_feed(
        source, Residence(home="vram", why="", held=HeldScrolls.load(scrolls, CPU)),
        VolumeTransform(field="image"), world=World(rank=1, size=4), device=CPU, batch_size=4, shuffle=True,
    )  # fmt: skip
    ranks.shrink("a step ran out")
    ranks.close()
    assert asked == [1, 4]


def test_a_batch_that_there_is_no_memory_for_is_cut_elsewhere(
    scrolls: list[Scroll], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volumes leave the device, as they do for a step; no patch is lost."""
    source = source_of(scrolls)
    expected = batches_of(source, Residence(home="disk", why=""))[:3]
    home = Residence(home="vram", why="", held=HeldScrolls.load(scrolls, CPU))
    plain, calls = HeldScrolls.cut, 0

    def cut(self: HeldScrolls, *words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("none left")
        return plain(self, *words)

    monkeypatch.setattr(HeldScrolls, "cut", cut)
    feed = open_feed(
        source, home, VolumeTransform(field="image"), world=World(), device=CPU, batch_size=4, shuffle=True,
        seed=5,
    )  # fmt: skip
    found = list(feed)
    assert feed.tier in ("ram", "source")
    assert "left vram: a batch could not be made, none left" in feed.why
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["image"], other["image"])
    feed.close()


def test_two_ranks_share_a_batch(scrolls: list[Scroll]) -> None:
    """Together they have what one rank has."""
    source, home = source_of(scrolls), Residence(home="ram", why="", held=HeldScrolls.load(scrolls, CPU))
    alone = batches_of(source, home)
    ranks = [batches_of(source, home, World(rank=rank, size=2)) for rank in range(2)]
    for whole, one, other in zip(alone, *ranks, strict=True):
        assert torch.equal(whole["image"], torch.cat([one["image"], other["image"]]))


def test_the_share_of_patches_around_sheets_is_kept(scrolls: list[Scroll]) -> None:
    """With all patches centred on sheets, the middle voxel of those not moved by an edge is a sheet."""
    source = ScrollSource.at_random(scrolls, patch=PATCH, samples=40, foreground=1.0, seed=0)
    numbers = np.arange(len(source))
    corners = source.places(numbers)[:, 1:]
    room = np.array([20, 48, 56]) - PATCH
    free = ((corners > 0) & (corners < room)).all(axis=1)
    labels = source.read(numbers)["label"][:, 0]
    middles = labels[:, PATCH[0] // 2, PATCH[1] // 2, PATCH[2] // 2]
    assert free.sum() > 5
    assert (middles[torch.from_numpy(free)] == SHEET).all()


def test_each_scroll_has_as_many_patches(scrolls: list[Scroll]) -> None:
    """An odd one goes to the first."""
    source = source_of(scrolls, samples=13)
    assert np.bincount(source.places(np.arange(13))[:, 0]).tolist() == [7, 6]


@pytest.mark.parametrize(
    ("asked", "room", "reserve", "home", "said"),
    [
        ("auto", Room(vram=80 * GB, ram=64 * GB), 20 * GB, "vram", "fits"),
        ("auto", Room(vram=80 * GB, ram=64 * GB), None, "ram", "not known"),
        ("auto", Room(vram=24 * GB, ram=64 * GB), 20 * GB, "ram", "not vram: .*does not fit"),
        ("auto", Room(vram=30 * GB, ram=64 * GB), 20 * GB, "ram", "not vram: .*does not fit"),
        ("auto", Room(vram=24 * GB, ram=4 * GB), 20 * GB, "disk", "not ram: .*does not fit"),
        ("auto", Room(ram=64 * GB), None, "ram", "fits"),
        ("ram", Room(vram=80 * GB, ram=64 * GB), 20 * GB, "ram", "fits"),
        ("disk", Room(vram=80 * GB, ram=64 * GB), 20 * GB, "disk", "asked for"),
    ],
)
def test_volumes_go_to_the_highest_place_that_fits(
    asked: str, room: Room, reserve: int | None, home: str, said: str
) -> None:
    """10 GB of them; the reason is told, and why no higher place was taken."""
    found, why = choose_home(asked, 10 * GB, reserve, room)
    assert found == home
    assert why.startswith(home)
    assert re.search(said, why), why


def test_an_unknown_place_is_answered_with_those_there_are() -> None:
    """A typo."""
    with pytest.raises(UsageError, match="auto, vram, ram, disk"):
        choose_home("gpu", 1, None, Room())


def test_without_a_gpu_volumes_are_held_in_ram(scrolls: list[Scroll]) -> None:
    """What is held is as large as the volumes and labels are."""
    residence = settle(scrolls, "auto", None, CPU)
    assert residence.home == "ram"
    assert residence.held is not None
    assert residence.held.bytes == 2 * 2 * 20 * 48 * 56


def test_the_middle_of_a_scroll_can_be_read_alone(scrolls: list[Scroll]) -> None:
    """So many slices, whole ones."""
    middle = read_middle(scrolls[0], 6)
    whole = ScrollSource.by_grid(scrolls[:1], patch=(20, 48, 56))[0]
    assert np.array_equal(middle["image"], whole["image"][0, 7:13])
    assert np.array_equal(middle["label"], whole["label"][0, 7:13])


def test_a_path_stands_in_for_made_scrolls(scrolls: list[Scroll], tmp_path: Path) -> None:
    """The fingerprint tells volumes apart, and is the same for the same files."""
    assert source_of(scrolls).fingerprint() == source_of(scrolls).fingerprint()
    other = make_scrolls(tmp_path, MadeScrolls(volumes=2, shape=(20, 48, 56), seed=9))
    assert source_of(other).fingerprint() != source_of(scrolls).fingerprint()


@pytest.mark.gpu
def test_patches_cut_on_a_card_are_those_read_from_disk(scrolls: list[Scroll]) -> None:
    """To the bit; and after the volumes have left the card."""
    card = torch.device("cuda", 0)
    source, transform = source_of(scrolls), VolumeTransform(field="image")
    options: dict[str, Any] = {"world": World(), "device": card, "batch_size": 4, "shuffle": True}
    read = open_feed(source, Residence(home="disk", why=""), transform, **options)
    residence = settle(scrolls, "auto", GB, card)
    assert residence.home == "vram", residence.why
    cut = open_feed(source, residence, transform, **options)
    for epoch in range(2):
        for one, other in zip(read, cut, strict=True):
            assert other["image"].device == card
            assert torch.equal(one["image"], other["image"])
            assert torch.equal(one["label"], other["label"])
        if epoch == 0:
            cut.shrink("asked to")
            assert cut.tier == "ram"
    read.close()
    cut.close()


@pytest.mark.gpu
def test_what_a_step_needs_is_measured_and_given_back() -> None:
    """More for more patches, less in bf16; nothing of it stays on the card."""
    card = torch.device("cuda", 0)
    gc.collect()  # what tests before it left would be given back in its midst
    before = torch.cuda.memory_allocated(card)
    one, four = (measure_step(UNet3d((8, 16)), (32, 64, 64), count, "fp32", card) for count in (1, 4))
    half = measure_step(UNet3d((8, 16)), (32, 64, 64), 4, "bf16", card)
    assert one < four
    assert half < four
    assert torch.cuda.memory_allocated(card) == before
