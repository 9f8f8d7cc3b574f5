"""What a feed, its sources and staging cannot be given: told as they are made, with what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feed.pictures import encoded
from feed.test_feed import Plain
from stoker.errors import UsageError
from stoker.feed import Feed
from stoker.feed.sources.images import ImageSource
from stoker.feed.sources.npy import NpySource
from stoker.feed.sources.objects import Store
from stoker.feed.sources.sql import SqlSource
from stoker.feed.sources.torch import TorchSource
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.stage import Selection, Stage

VOLUME = np.ones((8, 8, 8), np.uint8)
SIDES = "give depth, height and width"
COUNT = "give a number of "


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (
            "s3://bucket/train",
            "^'s3://bucket/train' is no dataset: .*ImageSource, ObjectSource, NpySource, VolumeSource or Sql",
        ),
        ("postgresql://me:word@host/db", r"^'postgresql://me:\*\*\*@host/db' is no dataset"),
        (b"data", "is no dataset"),
        (Path("/data/train"), "^'/data/train' is no dataset: .*ImageSource"),
        ({"a": 1}, r"^0 is no key of this dict, its first is 'a': .* 0 to 0\. Give .*values\(\)"),
        ({0: 1, 2: 3}, "^1 is no key of this dict"),
    ],
)
def test_what_is_no_dataset_is_told(dataset: Any, said: str) -> None:
    """An address is not trained on letter by letter, and a dict needs the keys that samples have."""
    for make in (lambda: Feed(dataset, 4, device="cpu"), lambda: TorchSource(dataset)):
        with pytest.raises(UsageError, match=said):
            make()


def test_a_dict_with_the_numbers_of_its_samples_is_one() -> None:
    """As for a DataLoader; so is one that makes what it has no key for."""

    class Making(dict[int, int]):
        def __missing__(self, number: int) -> int:
            return number

    feed = Feed({1: 11, 0: 10}, 2, device="cpu", workers=0)
    assert [batch.tolist() for batch in feed] == [[10, 11]]
    assert len(Feed(Making({7: 1, 8: 2}), 2, device="cpu", workers=0)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache": ""}, "cache is '': give a folder"),
        ({"cache": 5}, "cache is 5: give a folder"),
        ({"cache": b"x"}, "cache is b'x': give a folder"),
        ({"cache": "s3://bucket/x"}, "s3://bucket/x is no folder of this machine"),
        ({"device": [1]}, r"no device \[1\]: take cpu or cuda"),
        ({"transform": 5}, "transform is 5: give a function"),
        ({"collate_fn": 5}, "collate_fn is 5: give a function"),
        ({"rank": "0", "world_size": 2}, f"rank is '0': {COUNT}"),
        ({"rank": 0.5, "world_size": 2}, f"rank is 0.5: {COUNT}"),
        ({"rank": 0, "world_size": "2"}, f"world_size is '2': {COUNT}"),
        ({"rank": "0"}, "rank is '0' and world_size None: give both, or neither"),
        ({"batch_size": 4, "global_batch_size": 2}, "batch_size=4 and global_batch_size=2: give one of them"),
    ],
)
def test_wrong_use_of_a_feed_is_told(options: dict[str, Any], said: str) -> None:
    """When it is made, not when it is used."""
    with pytest.raises(UsageError, match=f"^{said}"):
        Feed(Plain(), **{"device": "cpu", **options})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("num_workers", "workers="),
        ("pin_memory", "leave it out"),
        ("pin_memory_device", "device="),
        ("sampler", "weights=.*subset=.*ranks"),
        ("batch_sampler", "batch_size="),
        ("prefetch_factor", "ahead="),
        ("persistent_workers", "leave it out"),
        ("generator", "seed="),
        ("timeout", "leave it out"),
        ("worker_init_fn", "leave it out"),
        ("multiprocessing_context", "set_start_method"),
        ("in_order", "leave it out"),
    ],
)
def test_what_a_dataloader_was_given_is_answered_with_what_to_do(name: str, said: str) -> None:
    """Since a feed stands where one stood."""
    given: dict[str, Any] = {name: 2}
    with pytest.raises(UsageError, match=f"^a Feed has no {name}=2: .*{said}"):
        Feed(Plain(), 4, device="cpu", **given)


def test_an_unknown_word_is_answered_with_those_there_are() -> None:
    """All that are wrong, in one go."""
    wrong: dict[str, Any] = {"num_workers": 4, "shufle": True}
    with pytest.raises(UsageError, match=r"no num_workers=4: .*; no shufle=True: it takes .*, shuffle, .*"):
        Feed(Plain(), 4, device="cpu", **wrong)
    with pytest.raises(UsageError) as caught:
        Feed(Plain(), 4, **wrong)
    assert "self" not in str(caught.value)
    assert "unknown" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: NpySource(5), "folder is 5: give"),  # type: ignore[arg-type]
        (lambda folder: NpySource(""), "folder is '': give"),
        (lambda folder: shards(folder, max_open="x"), f"max_open is 'x': {COUNT}files"),
        (lambda folder: ImageSource(5), "url is 5: give"),  # type: ignore[arg-type]
        (lambda folder: ImageSource(""), "url is '': give"),
        (lambda folder: images(folder, size=(2.5, 3)), r"size=\(2.5, 3\): give height and width"),
        (lambda folder: images(folder, size=0), "size=0: give height and width"),
        (lambda folder: images(folder, size="ab"), "size='ab': give height and width"),
        (lambda folder: images(folder, in_flight="x"), f"in_flight is 'x': {COUNT}requests"),
        (lambda folder: images(folder, in_flight=0), f"in_flight is 0: {COUNT}requests, 1 or more"),
        (lambda folder: images(folder, threads="x"), f"threads is 'x': {COUNT}threads"),
        (lambda folder: images(folder, classes=1.5), "classes is 1.5: give a list of names"),
        (lambda folder: images(folder, classes="cat"), "classes='cat' is one text: give a list"),
        (lambda folder: images(folder, exclude="*.jpg"), r"exclude='\*.jpg' is one text: give a list"),
        (lambda folder: images(folder, exclude=5), "exclude is 5: give a list of patterns"),
        (lambda folder: images(folder, keep=""), "keep is '': give a folder"),
        (lambda folder: SqlSource(5, "SELECT 1"), "url is 5: give"),  # type: ignore[arg-type]
        (lambda folder: SqlSource("sqlite:///x", 5), "query is 5: give"),  # type: ignore[arg-type]
        (lambda folder: VolumeSource(5), "the image volume is 5: give"),  # type: ignore[arg-type]
        (lambda folder: VolumeSource(VOLUME, labels=5), "the label volume is 5: give"),  # type: ignore[arg-type]
        (lambda folder: VolumeSource(VOLUME, patch=5), f"patch is 5: {SIDES}"),  # type: ignore[arg-type]
        (lambda folder: volume(patch="abc"), f"patch is 'abc': {SIDES}"),
        (lambda folder: volume(patch=("a", "b", "c")), rf"patch is \('a', 'b', 'c'\): {SIDES}"),
        (lambda folder: volume(patch=(2.5, 2, 2)), rf"patch is \(2.5, 2, 2\): {SIDES}"),
        (lambda folder: volume(mode="grid", stride=2), f"stride is 2: {SIDES}"),
        (lambda folder: volume(samples_per_epoch=1.5), f"samples_per_epoch is 1.5: {COUNT}patches"),
        (lambda folder: volume(samples_per_epoch="x"), f"samples_per_epoch is 'x': {COUNT}patches"),
        (lambda folder: volume(epochs=1.5), f"epochs is 1.5: {COUNT}epochs"),
        (lambda folder: volume(foreground="a"), "foreground is 'a': it is a share of the patches"),
        (lambda folder: volume(cache_bytes=-1), f"cache_bytes is -1: {COUNT}bytes, 0 or more"),
        (lambda folder: volume(cache_bytes="1GB"), f"cache_bytes is '1GB': {COUNT}bytes"),
        (lambda folder: stage(folder, include="*.jpg"), r"include='\*.jpg' is one text: give a list"),
        (lambda folder: stage(folder, exclude="*.jpg"), r"exclude='\*.jpg' is one text: give a list"),
        (lambda folder: stage(folder, jobs="x"), f"jobs is 'x': {COUNT}files"),
        (lambda folder: Stage(Store(folder), ""), "the folder is '': give a folder to write into"),  # type: ignore[arg-type]
    ],
)
def test_wrong_use_of_a_source_is_told(make: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    """When it is made, with the argument's name and value, and what to give."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(encoded(1))
    with pytest.raises(UsageError, match=f"^{said}"):
        make(tmp_path)


def images(folder: Path, **options: Any) -> ImageSource:
    return ImageSource(folder, **options)


def shards(folder: Path, **options: Any) -> NpySource:
    return NpySource(folder, **options)


def volume(**options: Any) -> VolumeSource:
    return VolumeSource(VOLUME, **{"patch": (2, 2, 2), **options})


def stage(folder: Path, **options: Any) -> Stage:
    return Stage(Store(folder), folder.parent / "there", Selection(**options))


def test_one_number_is_the_size_of_a_square(tmp_path: Path) -> None:
    """As in ImageTransform; and both are the same set of images."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(encoded(1))
    square = ImageSource(tmp_path, size=24)
    assert square.read(np.array([0]))[0].shape == (1, 3, 24, 24)
    assert square.fingerprint() == ImageSource(tmp_path, size=(24, 24)).fingerprint()
