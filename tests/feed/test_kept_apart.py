"""What is kept of one dataset is never handed out as another's, however alike the two look."""

import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from stoker.feed import Feed
from stoker.feed.ranks import launch_name
from stoker.feed.sources.npy import NpySource
from stoker.feed.sources.sql import SqlSource
from stoker.feed.sources.torch import TorchSource
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.value_digest import code_digest

TIMES = (1_700_000_000, 1_700_000_000)


class Labelled(Dataset[Any]):
    """Samples whose labels differ from another's in few, which no fingerprint looks at."""

    def __init__(self, label: int = 0) -> None:
        self.label = label

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)), self.label if index in (5, 41) else 0


def scale(samples: list[Any]) -> Any:
    """Twice what there is."""
    values, labels = default_collate(samples)
    return values * 2, labels


def normalise(samples: list[Any]) -> Any:
    """Less what there is."""
    values, labels = default_collate(samples)
    return values - 1, labels


def rename(samples: list[Any], label: int) -> Any:
    """The samples that are looked at have none of these labels."""
    values, labels = default_collate(samples)
    return values, torch.where(values[:, 0] == 5, label, labels)


def make(dataset: Any, collate: Any = None, **options: Any) -> Feed:
    return Feed(dataset, batch_size=16, device="cpu", workers=0, collate_fn=collate, **options)


def values(feed: Feed) -> list[float]:
    return [value for batch in feed for value in batch[0][:, 0].tolist()]


def labels(feed: Feed) -> list[int]:
    return [label for batch in feed for label in batch[1].tolist()]


def test_each_collate_has_its_own_samples_on_disk(tmp_path: Path) -> None:
    """One run after the other over the same cache; what did not change is still found there."""
    dataset, plain = Labelled(), list(map(float, range(64)))
    expected = {scale: [value * 2 for value in plain], normalise: [value - 1 for value in plain], None: plain}
    for collate in (scale, normalise, None, scale):
        with closing(make(dataset, collate, cache=tmp_path, tier="source")) as feed:
            assert values(feed) == expected[collate]
    caches = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(caches) == 3


def test_each_collate_has_its_own_samples_in_memory() -> None:
    """Of two feeds at once, as of training and validation; and settings that show in no sample looked at."""
    dataset = Labelled()
    with closing(make(dataset, scale, tier="ram")) as train, closing(make(dataset, normalise)) as val:
        assert values(train) == [value * 2.0 for value in range(64)]
        assert values(val) == [value - 1.0 for value in range(64)]
        assert (train.tier, val.tier) == ("ram", "ram")
    one, other = (make(dataset, partial(rename, label=label)) for label in (3, 4))
    with closing(one), closing(other):
        assert (labels(one)[5], labels(other)[5]) == (3, 4)


def test_a_state_does_not_depend_on_the_collate() -> None:
    """It speaks of the data: those of before are taken, with whatever collate."""
    assert TorchSource(Labelled(), scale).fingerprint() == TorchSource(Labelled()).fingerprint()
    source = TorchSource(Labelled())
    assert source.kept_as() == source.fingerprint()


def test_a_collate_is_known_by_what_it_does() -> None:
    """Its code, and what is bound in it; the same made anew is the same."""

    def within(factor: int) -> Any:
        return lambda samples: factor

    class Pad:
        def __init__(self, names: set[str]) -> None:
            self.names = names

        def collate(self, samples: list[Any]) -> Any:
            return samples

    alike = [
        (within(3), within(3)),
        (partial(rename, label=3), partial(rename, label=3)),
        (Pad({"a", "b", "c"}).collate, Pad({"c", "b", "a"}).collate),
    ]
    assert all(code_digest(one) == code_digest(same) for one, same in alike)
    two = [lambda samples: samples, lambda samples: samples[0]]
    different = [scale, normalise, *two, within(3), within(4), partial(rename, label=4), Pad({"a"}).collate]
    found = {code_digest(one) for one in [*different, *(one for one, _ in alike[1:])]}
    assert len(found) == len(different) + 2


def test_datasets_that_look_alike_are_kept_apart_in_memory() -> None:
    """Relabelled ones of one process, at once; feeds over one dataset still share its samples."""
    dataset = Labelled(7)
    with (
        closing(make(Labelled(), tier="ram")) as first,
        closing(make(dataset, tier="ram")) as second,
        closing(make(dataset, tier="ram")) as third,
    ):
        assert labels(first)[5] == 0
        assert labels(second)[5] == 7
        assert labels(first)[41] == 0
        assert second._hold()._rows.path == third._hold()._rows.path  # type: ignore[union-attr]
        assert third._hold()._rows.complete  # type: ignore[union-attr]
    # A list can be referred to by nothing that would not keep it: it is another one in each feed.
    with (
        closing(make([(torch.zeros(1), 0)] * 5, tier="ram")) as one,
        closing(make([(torch.zeros(1), 0)] * 5, tier="ram")) as other,
    ):
        assert one._hold()._rows.path != other._hold()._rows.path  # type: ignore[union-attr]


def test_processes_of_two_containers_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have the same number and the same memory to share: their namespaces differ."""
    plain = os.readlink
    with closing(make(Labelled(), tier="ram")) as feed:
        here, launch = feed._hold()._content.key, launch_name()

        def read(path: Any, **options: Any) -> Any:
            return "pid:[1]" if str(path) == "/proc/self/ns/pid" else plain(path, **options)

        monkeypatch.setattr(os, "readlink", read)
        del feed._hold()._content
        assert feed._hold()._content.key != here
        assert launch_name() != launch


def save(folder: Path, first: int) -> None:
    """Shards of one shape and time, whatever is in them."""
    folder.mkdir()
    for name in ("a", "b"):
        np.save(folder / f"{name}.npy", np.full((40, 2), first, np.int32))
        os.utime(folder / f"{name}.npy", TIMES)


def test_folders_of_equal_names_sizes_and_times_are_kept_apart(tmp_path: Path) -> None:
    """Unpacked from one archive, say: at once in memory, and one after the other on disk."""
    save(tmp_path / "train", 1)
    save(tmp_path / "val", 2)
    sources = [NpySource(tmp_path / name) for name in ("train", "val")]
    assert sources[0].fingerprint() == sources[1].fingerprint()  # so a resume may follow moved data
    with (
        closing(Feed(sources[0], batch_size=8, device="cpu", tier="ram")) as train,
        closing(Feed(sources[1], batch_size=8, device="cpu", tier="ram")) as val,
    ):
        assert torch.cat(list(train)).unique().tolist() == [1]
        assert torch.cat(list(val)).unique().tolist() == [2]
    for expected, name in ((1, "train"), (2, "val"), (1, "train")):
        source = NpySource(tmp_path / name)
        with closing(
            Feed(source, batch_size=8, device="cpu", tier="source", cache=tmp_path / "cache")
        ) as feed:
            assert torch.cat(list(feed)).unique().tolist() == [expected]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2


def test_other_data_in_the_same_folder_are_kept_apart(tmp_path: Path) -> None:
    """Put in its place with the times of before."""
    save(tmp_path / "train", 1)
    before = NpySource(tmp_path / "train")
    known = before.kept_as()
    (tmp_path / "train").rename(tmp_path / "old")
    save(tmp_path / "train", 2)
    after = NpySource(tmp_path / "train")
    assert after.fingerprint() == before.fingerprint()
    assert after.kept_as() != known


def test_databases_and_volumes_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    """By where they are; and no password of an address is told."""
    kept = []
    for number, name in enumerate(("train", "val")):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "samples.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, value REAL)")
            connection.executemany("INSERT INTO samples VALUES (?, ?)", [(at, number) for at in range(9)])
        os.utime(path, TIMES)
        np.save(tmp_path / name / "volume.npy", np.full((4, 8, 8), number, np.uint8))
        os.utime(tmp_path / name / "volume.npy", TIMES)
        sql = SqlSource(f"sqlite:///{path}", "SELECT id, value FROM samples", key="id")
        volume = VolumeSource(tmp_path / name / "volume.npy", patch=(4, 4, 4), mode="grid")
        kept.append([(one.fingerprint(), one.kept_as()) for one in (sql, volume)])
    for (print_of_one, one), (print_of_other, other) in zip(*kept, strict=True):
        assert print_of_one == print_of_other
        assert one != other
        assert str(tmp_path) not in one


def test_volumes_in_memory_are_known_by_every_voxel(tmp_path: Path) -> None:
    """Of labels that differ in one: at once in memory, and one after the other on disk."""
    image = np.zeros((8, 160, 160), np.uint8)
    labels = [image, image.copy()]
    labels[1][0, 0, 1] = 7
    sources = [VolumeSource(image, labels=some, patch=(8, 16, 16), mode="grid") for some in labels]
    assert sources[0].fingerprint() == sources[1].fingerprint()  # which looks at one voxel in three
    with (
        closing(Feed(sources[0], device="cpu", tier="ram")) as one,
        closing(Feed(sources[1], device="cpu", tier="ram")) as other,
    ):
        found = [sum(int(batch["label"].sum()) for batch in feed) for feed in (one, other)]
    assert found == [0, 7]
    for source, expected in zip(sources, (0, 7), strict=True):
        with closing(Feed(source, device="cpu", tier="source", cache=tmp_path)) as feed:
            assert sum(int(batch["label"].sum()) for batch in feed) == expected
    again = VolumeSource(torch.from_numpy(image), labels=labels[1], patch=(8, 16, 16), mode="grid")
    assert again.kept_as() == sources[1].kept_as()


def mixup(samples: list[Any]) -> Any:
    """Each sample mixed with its neighbour, by a share that is drawn."""
    values, labels = default_collate(samples)
    share = np.random.default_rng(np.random.randint(1 << 30)).random()
    return values * share + values.roll(1, 0) * (1 - share), labels


def centre(samples: list[Any]) -> Any:
    """Each sample less the mean of its batch."""
    values, labels = default_collate(samples)
    return values - values.mean(0), labels


def pad(samples: list[Any]) -> Any:
    """As long as the longest of the batch."""
    longest = max(int(value[0]) for value, _ in samples) + 1
    return torch.stack([torch.nn.functional.pad(value, (0, longest)) for value, _ in samples])


def pair(samples: list[Any]) -> Any:
    """Two samples a row."""
    return torch.stack([value for value, _ in samples]).reshape(-1, 2, 3).mean(1)


def contrast(samples: list[Any]) -> Any:
    """Each sample beside another one."""
    values, _ = default_collate(samples)
    if len(values) < 2:
        raise ValueError("a pair is needed")
    return values


@pytest.mark.parametrize(
    ("collate", "said"),
    [
        (mixup, "the collate_fn draws from numpy's random generator"),
        (centre, "the collate_fn makes something else of sample 0 beside other samples"),
        (pad, "holds samples of float32[4], but those before were float32[67]"),
        (pair, "the collate_fn makes 8 rows of 16 samples"),
        (contrast, "the collate_fn makes no batch of 1 samples: ValueError: a pair is needed"),
    ],
)
def test_what_a_collate_makes_of_several_samples_is_not_held(collate: Any, said: str) -> None:
    """Held, a sample would stay with the neighbours and the draws of its first epoch."""
    state = np.random.get_state(legacy=False)
    with closing(make(Labelled(), collate, tier="ram")) as feed:
        assert feed.tier == "source"
        assert said in feed.why
    assert str(state) == str(np.random.get_state(legacy=False))


def test_batches_of_a_collate_that_draws_are_new_in_every_epoch() -> None:
    """As a DataLoader's would be; kept as first made only where that was asked for."""
    with closing(make(Labelled(), mixup, tier="ram")) as feed:
        assert values(feed) != values(feed)
    with closing(make(Labelled(), mixup, tier="ram", cache_random=True)) as kept:
        assert values(kept) == values(kept)
        assert kept.tier == "ram"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tier", ["source", "ram"])
def test_a_batch_is_built_as_the_collate_builds_it(tier: str, workers: int) -> None:
    """A tuple stays one, wherever it was read and held."""

    def twice(samples: list[Any]) -> Any:
        values, labels = default_collate(samples)
        return {"values": (values, values), "label": labels}

    feed = Feed(Labelled(), batch_size=16, device="cpu", workers=workers, collate_fn=twice, tier=tier)
    with closing(feed):
        for _ in range(2):
            assert {type(batch["values"]) for batch in feed} == {tuple}
        assert feed.tier == tier
