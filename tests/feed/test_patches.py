"""Where patches lie: by seed, around labels, on a grid; the same from every form of storage."""

from pathlib import Path

import numpy as np
import pytest

from feed.volumes import PATCH, is_right, make_labels, make_values, write_volume
from stoker.feed.sources import volume as module
from stoker.feed.sources.volume import VolumeSource

# Of seed 3: a version of the draws that gives others is another version.
GOLDEN = [[3, 17, 20], [1, 22, 3], [7, 0, 0], [6, 8, 10], [7, 15, 3], [14, 23, 29]]


def test_random_places_are_a_matter_of_the_seed_alone() -> None:
    """The same for the same seed, spread over all that fits, others for another seed."""
    place = [
        VolumeSource(make_values(), patch=PATCH, samples_per_epoch=3000, seed=seed).corners(np.arange(3000))
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(place[0], place[1])
    assert not np.array_equal(place[0], place[2])
    assert (place[0].min(axis=0).tolist(), place[0].max(axis=0).tolist()) == ([0, 0, 0], [14, 23, 29])
    # 15 depths with 200 each: 5 standard deviations are 68.
    assert np.abs(np.bincount(place[0][:, 0]) - 200).max() < 68


def test_places_stay_the_same_from_release_to_release() -> None:
    """A resume, or a cache on disk, finds the patches that it knew."""
    source = VolumeSource(make_values(), labels=make_labels(), patch=PATCH, samples_per_epoch=6, seed=3)
    assert source.corners(np.arange(6)).tolist() == GOLDEN


def test_samples_are_numbered_by_where_they_lie(tmp_path: Path) -> None:
    """A block of consecutive samples touches far fewer chunks than as many samples from all over."""
    values = np.zeros((64, 128, 128), np.uint8)
    path = write_volume(tmp_path / "image", values, "zarr3", (16, 16, 16))
    source = VolumeSource(path, patch=(16, 32, 32), samples_per_epoch=512)
    near = source.read_cost(np.arange(100, 108)).chunks
    far = source.read_cost(np.arange(0, 512, 64)).chunks
    assert near * 2 < far
    assert (np.diff(source.chunk_of(np.arange(512))) == 0).sum() > 0


@pytest.mark.parametrize(("share", "centred"), [(0.0, 0), (0.25, 25), (1.0, 100)])
def test_the_share_of_patches_around_labels_is_exact(share: float, centred: int) -> None:
    """Each of those holds a labelled voxel at its centre, or as near as the edge allows."""
    labels = make_labels()
    source = VolumeSource(
        make_values(), labels=labels, patch=PATCH, samples_per_epoch=100, foreground=share, seed=5
    )
    voxels = np.argwhere(labels)
    wanted = {tuple(np.clip(v - np.array(PATCH) // 2, 0, [14, 23, 29]).tolist()) for v in voxels}
    found = [tuple(corner) in wanted for corner in source.corners(np.arange(100)).tolist()]
    assert centred <= sum(found) <= centred + 2
    held = source.read(np.flatnonzero(found))["label"]
    assert all(patch.any() for patch in held)


def test_every_labelled_voxel_has_the_same_chance() -> None:
    """Not every block of them: a lone voxel comes as often as one in a crowd."""
    labels = np.zeros((20, 33, 41), np.uint8)
    labels[10, 16, 10:30] = 1
    labels[2, 2, 2] = 1
    counts = np.zeros(21)
    for seed in range(400):
        source = VolumeSource(
            labels, labels=labels, patch=(1, 1, 1), samples_per_epoch=3, foreground=1.0, seed=seed
        )
        for corner in source.corners(np.arange(3)):
            assert labels[tuple(corner)]
            counts[0 if corner[0] == 2 else corner[2] - 9] += 1
    # 57 each; 5 standard deviations are 35.
    assert np.abs(counts - counts.mean()).max() < 35


def test_only_the_labels_named_count() -> None:
    """A volume may mark what is unknown with a label of its own."""
    source = VolumeSource(
        make_values(),
        labels=make_labels(),
        patch=PATCH,
        samples_per_epoch=9,
        foreground=1.0,
        foreground_values=[1],
    )
    assert {tuple(corner) for corner in source.corners(np.arange(9)).tolist()} == {(0, 15, 24)}


def test_what_is_drawn_does_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same voxels from every form, chunk size and bound on memory."""
    labels = (make_values() % 5 == 0).astype(np.uint8)
    places = []
    for number, (form, chunk) in enumerate(
        [("npy", (1, 1, 1)), ("zarr2", (8, 16, 16)), ("zarr3-sharded", (20, 5, 7)), ("n5", (3, 40, 50))]
    ):
        monkeypatch.setattr(module, "_SCANNED", 1000 * 4**number)
        monkeypatch.setattr("stoker.feed.sources.patches._TOGETHER", 300 * 4**number)
        path = write_volume(tmp_path / str(number), labels, form, chunk)
        source = VolumeSource(path, labels=path, patch=PATCH, samples_per_epoch=100, foreground=1.0)
        places.append(source.corners(np.arange(100)).tolist())
    assert all(place == places[0] for place in places)
    assert len({tuple(corner) for corner in places[0]}) > 80


@pytest.mark.parametrize("stride", [None, (6, 5, 3), (1, 10, 12)])
def test_a_grid_covers_every_voxel(stride: tuple[int, int, int] | None) -> None:
    """In order, the last of each axis moved back; without overlap but there, if no stride is given."""
    values = make_values((13, 20, 25))
    source = VolumeSource(values, patch=PATCH, mode="grid", stride=stride)
    covered = np.zeros(values.shape, int)
    for z, y, x in source.corners(np.arange(len(source))):
        covered[z : z + 6, y : y + 10, x : x + 12] += 1
    assert covered.min() == 1
    numbers = np.arange(len(source))
    assert is_right(source, source.read(numbers), numbers, image=values)
    assert source.corners(numbers).tolist() == sorted(source.corners(numbers).tolist())
    if stride is None:
        assert len(source) == 3 * 2 * 3


def test_the_default_is_as_many_as_a_grid_has() -> None:
    """Of patches of 72 x 136 x 136."""
    values = np.zeros((80, 136, 300), np.uint8)
    source = VolumeSource(values)
    assert (len(source), source[0]["image"].shape) == (2 * 1 * 3, (1, 72, 136, 136))
    assert len(VolumeSource(values, mode="grid")) == 6
