"""Each epoch has patches of its own, wherever it is gone on from; a validation has each voxel once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.feed.transforms import VolumeTransform
from stoker.train.config_file import load
from stoker.train.task import World
from stoker.workloads.vesuvius import VesuviusConfig, VesuviusTask
from stoker.workloads.vesuvius.metrics import Dice, SurfaceDice
from stoker.workloads.vesuvius.residence import Residence, ScrollFeed, open_feed
from stoker.workloads.vesuvius.scrolls import SHEET, Scroll
from stoker.workloads.vesuvius.source import EPOCHS, HeldScrolls, ScrollSource

CPU = torch.device("cpu")
PATCH = (4, 8, 8)
COUNT, BATCH, EPOCH = 10, 2, 5


@pytest.fixture(scope="module")
def scrolls(tmp_path_factory: pytest.TempPathFactory) -> list[Scroll]:
    """Two of noise, as plain arrays: a zarr's labels would be read by a process of their own."""
    folder = tmp_path_factory.mktemp("scrolls")
    draw = np.random.default_rng(0)
    made = []
    for name, shape in (("a", (12, 30, 40)), ("b", (20, 16, 24))):
        paths = [folder / f"{name}_{kind}.npy" for kind in ("volume", "labels")]
        np.save(paths[0], draw.integers(0, 256, shape).astype(np.uint8))
        np.save(paths[1], draw.integers(0, 3, shape).astype(np.uint8))
        made.append(Scroll(name=name, volume=paths[0], labels=paths[1]))
    return made


def source_of(scrolls: list[Scroll], epochs: int = EPOCHS) -> ScrollSource:
    return ScrollSource.at_random(scrolls, patch=PATCH, samples=COUNT, foreground=0.5, seed=3, epochs=epochs)


def feed_of(source: ScrollSource, home: Residence, world: World | None = None) -> ScrollFeed:
    return open_feed(
        source, home, VolumeTransform(field="image"),
        world=world or World(), device=CPU, batch_size=BATCH, shuffle=True, seed=5,
    )  # fmt: skip


def batches_of(feed: ScrollFeed, state: dict[str, Any] | None, count: int) -> list[torch.Tensor]:
    """The images of so many batches, from a state on."""
    if state is not None:
        feed.load_state_dict(state)
    found: list[torch.Tensor] = []
    while len(found) < count:
        found += [batch["image"] for batch in feed]
    feed.close()
    return found


def test_a_training_sees_new_places_in_every_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the task opens its feeds: no patch of three epochs comes twice, where nothing is mirrored."""
    monkeypatch.chdir(tmp_path)
    small = [
        "made.volumes=2", "made.shape=[24,64,64]", "patch=[8,16,16]", "widths=[4,8]", "samples_per_epoch=8",
        "flip=0", "foreground=0",
    ]  # fmt: skip
    feeds = VesuviusTask(load(VesuviusConfig, None, small)).open_feeds(World(), CPU)
    patches = torch.cat([batch["image"] for _ in range(3) for batch in feeds.train])
    assert len(feeds.train) == 4
    feeds.close()
    assert len(patches.flatten(1).unique(dim=0)) == len(patches) == 3 * 8


def test_places_of_an_epoch_are_new_and_its_own(scrolls: list[Scroll]) -> None:
    """As many of each scroll; those of the first are what they ever were."""
    source, once = source_of(scrolls), source_of(scrolls, epochs=1)
    assert (len(once), source.per_epoch, len(source)) == (COUNT, COUNT, COUNT * EPOCHS)
    assert np.array_equal(source.places(np.arange(COUNT)), once.places(np.arange(COUNT)))
    numbers = np.arange(50 * COUNT)
    places = source.places(numbers)
    assert len(np.unique(places, axis=0)) > 0.9 * len(places)  # an edge moves some to one place
    assert (np.bincount(places[:, 0]) == [250, 250]).all()
    # In any order and from any epoch, each is worked out by itself.
    mixed = np.array([7 * COUNT + 3, 2, 49 * COUNT, 7 * COUNT + 4, 2])
    assert np.array_equal(source_of(scrolls).places(mixed), places[mixed])
    assert np.array_equal(
        source_of(scrolls).places(np.array([len(source) - 1])), source.places(np.array([-1]))
    )


def test_patches_of_later_epochs_are_around_sheets_too(scrolls: list[Scroll]) -> None:
    """With all of them centred on sheets, the middle of those that no edge moved is one."""
    source = ScrollSource.at_random(
        scrolls[:1], patch=PATCH, samples=COUNT, foreground=1.0, seed=3, epochs=EPOCHS
    )
    numbers = np.arange(900 * COUNT, 920 * COUNT)
    corners = source.places(numbers)[:, 1:]
    free = ((corners > 0) & (corners < np.array([12, 30, 40]) - PATCH)).all(axis=1)
    assert free.sum() > 50
    middles = source.read(numbers)["label"][:, 0, PATCH[0] // 2, PATCH[1] // 2, PATCH[2] // 2]
    assert (middles[torch.from_numpy(free)] == SHEET).all()


def test_a_validation_counts_each_voxel_once(scrolls: list[Scroll], monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches that are moved back to fit overlap others: what is judged is what the whole volumes have."""
    task = VesuviusTask(load(VesuviusConfig, None, ["patch=[4,8,8]", "widths=[4,8]", "flip=0"]))
    monkeypatch.setattr("stoker.workloads.vesuvius.task.open_scrolls", lambda config: [*scrolls, scrolls[0]])
    monkeypatch.setattr(
        "stoker.workloads.vesuvius.task.split_scrolls", lambda found, valid: (found, found[:2])
    )
    expected = Dice()
    for scroll in scrolls:
        found, labels = (
            torch.from_numpy(np.load(path))[None, None] for path in (scroll.volume, scroll.labels)
        )
        expected.update(found > 130, labels)

    class Threshold(torch.nn.Module):
        """The logits of voxels that are brighter than 130."""

        def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
            return [(images * task.config.std + task.config.mean) * 255 - 130.5]

    for home in ("ram", "disk"):
        task.config = replace(task.config, resident=home)
        feeds = task.open_feeds(World(), CPU)
        assert feeds.valid is not None
        metrics, patches = task.metrics(), 0
        for batch in feeds.valid:
            patches += len(batch["image"])
            task.judge(Threshold(), batch, metrics)
        feeds.close()
        assert patches == 3 * 4 * 5 + 5 * 2 * 3
        assert (int(metrics["dice"].both), int(metrics["dice"].each)) == (
            int(expected.both),
            int(expected.each),
        )


def test_surfaces_see_beyond_what_is_counted() -> None:
    """A sheet's face where it counts is a face still; where another patch has it, it is not counted."""
    labels = torch.zeros((1, 1, 8, 8, 8), dtype=torch.uint8)
    labels[..., 3:6, :, :] = SHEET
    whole, part = SurfaceDice(0.0), SurfaceDice(0.0)
    whole.update(labels == SHEET, labels)
    part.update(labels == SHEET, labels, torch.tensor([[4, 0, 6]]))
    assert (int(whole.all), int(whole.near)) == (2 * 128, 2 * 128)
    # Of two faces of 64 voxels, the lower one's last two columns.
    assert (int(part.all), int(part.near)) == (2 * 16, 2 * 16)


def test_a_resume_in_any_epoch_sees_what_was_to_come(scrolls: list[Scroll]) -> None:
    """By one rank or two, from disk or from memory, in an epoch and at its end: equal to the bit."""
    source, held = source_of(scrolls), HeldScrolls.load(scrolls, CPU)
    homes = [
        Residence(home="disk", why=""),
        Residence(home="ram", why="", held=held),
        Residence(home="vram", why="", held=held),
    ]
    feed, whole, states = feed_of(source, homes[0]), [], []
    for _ in range(4):
        for batch in feed:
            whole.append(batch["image"])
            states.append(feed.state_dict())
    feed.close()
    assert len(whole) == 4 * EPOCH
    for done in (3, EPOCH, EPOCH + 2, 3 * EPOCH - 1):
        for home in homes:
            for ranks in (1, 2):
                shares = [
                    batches_of(
                        feed_of(source, home, World(rank=rank, size=ranks)),
                        states[done - 1],
                        len(whole) - done,
                    )
                    for rank in range(ranks)
                ]
                found = [torch.cat(parts) for parts in zip(*shares, strict=True)]
                for expected, one in zip(whole[done:], found, strict=True):
                    assert torch.equal(expected, one)
