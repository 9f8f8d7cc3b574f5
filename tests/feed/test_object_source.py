"""Objects as samples: their bytes, or what a function makes of them, from a folder and from a real server."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stoker import Feed, ObjectSource
from stoker.errors import SourceBroken, SourceChanged, UsageError
from stoker.feed.choice import Room
from stoker.feed.holding import Holding
from stoker.feed.sources.objects import Store

from .s3 import S3Server
from .workers import read_in_workers, reopened

COUNT, SIZE = 23, 5000
KEYS = [f"{'ab'[number % 2]}/{number:03d}.bin" for number in range(COUNT)]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where objects lie, and how they are reached."""

    url: str
    options: dict[str, Any]

    @property
    def store(self) -> Store:
        return Store(self.url, options=self.options)

    def source(self, **how: Any) -> ObjectSource:
        return ObjectSource(self.url, options=self.options, **how)


def bytes_of(key: str) -> bytes:
    """What an object is made of: another for each key."""
    return np.random.default_rng(KEYS.index(key)).bytes(SIZE)


def split(data: bytes) -> dict[str, Any]:
    """Some numbers, a label and a word."""
    return {"x": np.frombuffer(data, np.int32)[:16].copy(), "label": data[0], "word": data[:2].hex()}


def first_of(data: bytes) -> torch.Tensor:
    """So many of its bytes as the first says."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[: data[0] % 3 + 1]


def refuse(data: bytes) -> int:
    """What cannot be done to one object."""
    if data == bytes_of(KEYS[4]):
        raise ValueError("no such thing")
    return len(data)


def crop(data: bytes) -> torch.Tensor:
    """Augmented as it is decoded: another each time."""
    at = random.randrange(100)
    return torch.frombuffer(bytearray(data[at : at + 64]), dtype=torch.uint8)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.service)])
def place(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Place:
    """The same objects in a folder, named by its address, and on a server."""
    where = Place(url=f"file://{tmp_path / 'set'}", options={})
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        where = Place(url=f"s3://{prefix}", options=server.options())
    else:
        (tmp_path / "set").mkdir()
    for key in KEYS:
        where.store.put(key, bytes_of(key))
    return where


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The objects as files."""
    for key in KEYS:
        Store(tmp_path).put(key, bytes_of(key))
    return tmp_path


def rows_of(keys: Sequence[str]) -> torch.Tensor:
    return torch.stack([torch.frombuffer(bytearray(bytes_of(key)), dtype=torch.uint8) for key in keys])


def test_samples_are_the_objects_in_the_order_of_their_keys(place: Place) -> None:
    """Their bytes as rows, whichever are asked for, in that order and as often."""
    source = place.source()
    keys = sorted(KEYS)
    assert [source.key(number) for number in range(len(source))] == keys
    wanted = np.array([22, 0, 7, 0])
    batch = source.read(wanted)
    assert torch.equal(batch, rows_of([keys[number] for number in wanted]))
    assert tuple(source.read(np.empty(0, np.int64)).shape) == (0, SIZE)
    assert torch.equal(source[-1], batch[0])
    with pytest.raises(IndexError, match="no sample 23"):
        source[COUNT]


def test_a_batch_of_decoded_objects_is_default_collate_s(place: Place) -> None:
    """A dict of a tensor, numbers and text; a sample is what the function gave."""
    source = place.source(decode=split)
    keys = sorted(KEYS)
    batch = source.read(np.array([3, 1]))
    samples = [split(bytes_of(keys[number])) for number in (3, 1)]
    assert torch.equal(batch["x"], torch.from_numpy(np.stack([one["x"] for one in samples])))
    assert batch["label"].tolist() == [one["label"] for one in samples]
    assert batch["word"] == [one["word"] for one in samples]
    assert source[3]["word"] == samples[0]["word"]
    assert len(source.read(np.empty(0, np.int64))["x"]) == 0


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("decode", [None, split], ids=["bytes", "decoded"])
def test_workers_read_it_as_a_torch_dataset(place: Place, start: str, decode: Any) -> None:
    """Each by a client of its own, after this process has used its own."""
    source = place.source(decode=decode)
    source.read(np.array([0]))
    batches = read_in_workers(source, start, batch_size=8)
    found = torch.cat([batch if decode is None else batch["x"] for batch in batches])
    every = source.read(np.arange(COUNT))
    assert torch.equal(found, every if decode is None else every["x"])


def test_a_pickle_has_no_client_in_it(place: Place) -> None:
    """What comes out of it reads the same samples, and is told by the same fingerprint."""
    source = place.source(decode=split)
    source.read(np.array([0]))
    other = reopened(source)
    assert (other.fingerprint(), other.kept_as()) == (source.fingerprint(), source.kept_as())
    assert other[2]["word"] == source[2]["word"]


@pytest.mark.parametrize("tier", ["source", "ram", "disk"])
@pytest.mark.parametrize("decode", [None, split], ids=["bytes", "decoded"])
def test_a_feed_has_each_once_an_epoch_on_every_tier(
    place: Place, tier: str, decode: Any, tmp_path: Path
) -> None:
    """The same batches, and from the second epoch on without the store where they are held."""
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "device": "cpu"}
    how: dict[str, Any] = {"cache": tmp_path / "cache"} if tier == "disk" else {}
    decode = None if decode is None else numbers_of
    plain = Feed(place.source(decode=decode), tier="source", **options)
    feed = Feed(place.source(decode=decode), tier="ram" if tier == "ram" else "source", **how, **options)
    expected = [list(plain), list(plain)]
    assert len(torch.cat(expected[0])) == COUNT
    assert not torch.equal(torch.cat(expected[0]), torch.cat(expected[1]))
    assert all(map(torch.equal, feed, expected[0]))
    if tier != "source":
        for key in KEYS:
            place.store.put(key, b"gone")
    assert all(map(torch.equal, feed, expected[1]))
    feed.close()
    plain.close()


def numbers_of(data: bytes) -> torch.Tensor:
    """A row of numbers, which a tier can hold."""
    return torch.frombuffer(bytearray(data), dtype=torch.int32)[:100]


def test_patterns_and_names_take_some(folder: Path) -> None:
    """By name or by whole key; what is hidden is none, and how many were left out is told."""
    Store(folder).put("a/notes.txt", b"x")
    Store(folder).put(".hidden/1.bin", b"x")
    source = ObjectSource(folder, include=["*.bin"], exclude=["b/*", "002.bin"])
    assert [source.key(number) for number in range(len(source))] == [
        key for key in sorted(KEYS) if key.startswith("a/") and key != "a/002.bin"
    ]
    assert len(source) + source.ignored == COUNT + 2
    some = ObjectSource(folder, names=[KEYS[9], KEYS[2], KEYS[9]])
    assert [some.key(number) for number in range(len(some))] == sorted([KEYS[2], KEYS[9]])
    assert torch.equal(some.read(np.arange(2)), rows_of(sorted([KEYS[2], KEYS[9]])))


def test_what_is_not_there_is_told(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder without objects, patterns that match none, and a name that is none's, with the nearest."""
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(UsageError, match=r"no objects to read under .*: 0 are there; give the address"):
        ObjectSource(empty)
    with pytest.raises(UsageError, match=r"23 are there, none of them asked for: look at include="):
        ObjectSource(folder, include=["*.jpg"])
    with pytest.raises(UsageError, match=r"no object 'a/03\.bin' under .*nearest are .*a/.*bin"):
        ObjectSource(folder, names=["a/03.bin"])
    with pytest.raises(UsageError, match=r"include='\*\.bin' is one text: give a list, \['\*\.bin'\]"):
        ObjectSource(folder, include="*.bin")


def test_an_object_that_cannot_be_decoded_is_named(folder: Path) -> None:
    """With its size, what was raised, and what to do; leaving it out by name is that."""
    source = ObjectSource(folder, decode=refuse)
    told = r"decode failed on .*/a/004\.bin \(5000 bytes\): ValueError: no such thing; "
    with pytest.raises(SourceBroken, match=told + r".*exclude=\['a/004\.bin'\]"):
        source.read(np.arange(COUNT))
    rest = ObjectSource(folder, decode=refuse, exclude=["a/004.bin"])
    assert rest.read(np.arange(COUNT - 1)).tolist() == [SIZE] * (COUNT - 1)


def test_samples_of_several_shapes_come_alone_or_by_a_collate(folder: Path) -> None:
    """Together they are refused by name; a feed in batches of one says why it holds none of them."""
    Store(folder).put("a/000.bin", b"short")
    for source in (ObjectSource(folder), ObjectSource(folder, decode=first_of)):
        with pytest.raises(SourceBroken, match=r"not alike: .*a/000\.bin and .*Give ObjectSource a decode"):
            source.read(np.arange(COUNT))
        loader = DataLoader(source, batch_size=COUNT, collate_fn=lambda samples: list(map(len, samples)))
        assert next(iter(loader)) == [len(source[number]) for number in range(COUNT)]
        feed = Feed(source, batch_size=1, device="cpu")
        assert feed.tier == "source"
        assert [batch.shape[1] for batch in feed] == [len(source[number]) for number in range(COUNT)]
        feed.close()


def test_an_empty_object_is_a_sample_of_no_bytes(tmp_path: Path) -> None:
    """With others of no bytes beside it."""
    for key in ("a", "b"):
        Store(tmp_path).put(key, b"")
    assert tuple(ObjectSource(tmp_path).read(np.arange(2)).shape) == (2, 0)


def test_what_draws_as_it_decodes_is_not_held_unasked(folder: Path) -> None:
    """A cache would freeze it; `why` says what was seen."""
    feed = Feed(ObjectSource(folder, decode=crop), batch_size=5, device="cpu")
    assert feed.tier == "source"
    assert "draws from random's random generator" in feed.why
    feed.close()


def test_the_fingerprint_follows_what_the_samples_are_made_of(folder: Path) -> None:
    """The objects taken, their sizes and times, the code that decodes; a cache is known by its place too."""
    told = ObjectSource(folder).fingerprint()
    assert ObjectSource(folder, in_flight=3).fingerprint() == told
    others = {told, ObjectSource(folder, decode=split).fingerprint()}
    others.add(ObjectSource(folder, decode=numbers_of).fingerprint())
    others.add(ObjectSource(folder, exclude=["a/*"]).fingerprint())
    moved = folder.parent / f"{folder.name}_moved"
    shutil.copytree(folder, moved)
    assert ObjectSource(moved).fingerprint() == told
    assert ObjectSource(moved).kept_as() != ObjectSource(folder).kept_as()
    Store(folder).put(KEYS[0], b"other" * 1000)
    others.add(ObjectSource(folder).fingerprint())
    assert len(others) == 5


def test_an_object_of_another_size_than_listed_is_told(folder: Path) -> None:
    """Whether a row of bytes was made of it or a sample."""
    sources = [ObjectSource(folder), ObjectSource(folder, decode=split)]
    Store(folder).put(KEYS[0], b"other")
    for source in sources:
        with pytest.raises(SourceChanged, match=r"has 5 bytes where 5000 were"):
            source.read(np.arange(COUNT))


def test_objects_wait_in_memory_where_what_is_made_of_them_does_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are: the second epoch needs no file any more."""
    monkeypatch.setattr(Holding, "_room", lambda self: Room(ram=COUNT * 16000))
    feed = Feed(ObjectSource(folder, decode=widened), batch_size=5, device="cpu")
    assert feed.tier == "source"
    assert "the files are held in RAM as they are" in feed.why
    first = list(feed)
    shutil.rmtree(folder)
    assert all(map(torch.equal, feed, first))
    feed.close()


def widened(data: bytes) -> torch.Tensor:
    """Eight bytes of one."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


@pytest.mark.service
def test_what_is_read_remotely_can_be_kept(s3_server: S3Server, prefix: str, tmp_path: Path) -> None:
    """In a folder: the second time from there, the server's copies gone."""
    store = s3_server.store(prefix)
    for key in KEYS:
        store.put(key, bytes_of(key))
    source = ObjectSource(f"s3://{prefix}", options=s3_server.options(), keep=tmp_path)
    for _ in range(2):
        assert torch.equal(source.read(np.arange(COUNT)), rows_of(sorted(KEYS)))
        for key in KEYS:
            store.put(key, b"gone")
    assert torch.equal(ObjectSource(tmp_path).read(np.arange(COUNT)), rows_of(sorted(KEYS)))
