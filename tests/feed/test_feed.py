"""The feed: the same batches on every tier, world size and after every resume; the caller's own."""

import gc
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from stoker.errors import SourceChanged, UsageError
from stoker.feed import Feed
from stoker.feed.choice import Room
from stoker.feed.holding import Holding
from stoker.feed.sources.base import Indices, Source
from stoker.feed.tiers.rows import Rows

LENGTH = 103


class Numbered(Source):
    """Samples that carry their number; counts what is read of it."""

    def __init__(self, length: int = LENGTH, name: str = "numbered") -> None:
        self.length = length
        self.name = name
        self.read_so_far: list[int] = []

    def __len__(self) -> int:
        return self.length

    def read(self, indices: Indices) -> Any:
        self.read_so_far += indices.tolist()
        numbers = torch.from_numpy(indices.copy())
        return {"x": numbers[:, None] * 10 + torch.arange(3), "n": numbers}

    def fingerprint(self) -> str:
        return self.name


class Plain(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index


class Augmented(Plain):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(4), index


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, Any]]:
    yield {"batch_size": 8, "shuffle": True, "seed": 3, "device": "cpu"}


def epochs(feed: Feed, count: int) -> list[list[int]]:
    """The numbers of `count` epochs' batches, checked against their rows."""
    found = []
    for _ in range(count):
        seen = []
        for batch in feed:
            assert torch.equal(batch["x"], batch["n"][:, None] * 10 + torch.arange(3))
            seen += batch["n"].tolist()
        found.append(seen)
    return found


def tiers(options: dict[str, Any], folder: Path) -> list[Feed]:
    return [
        Feed(Numbered(), tier="ram", **options),
        Feed(Numbered(), tier="source", **options),
        Feed(Numbered(), tier="source", cache=folder / "cache", **options),
        Feed(Numbered(), tier="source", workers=2, **options),
    ]


def test_every_tier_gives_the_same_batches(options: dict[str, Any], tmp_path: Path) -> None:
    """Memory, disk, threads and worker processes: three epochs, bit by bit, each sample once in each."""
    feeds = tiers(options, tmp_path)
    found = [epochs(feed, 3) for feed in feeds]
    assert all(one == found[0] for one in found)
    assert all(sorted(epoch) == list(range(LENGTH)) for epoch in found[0])
    assert found[0][0] != found[0][1]
    assert [feed.tier for feed in feeds] == ["ram", "source", "source", "source"]
    for feed in feeds:
        feed.close()


def test_what_is_held_is_read_once(options: dict[str, Any]) -> None:
    """The first epoch fills memory; after it the source is left alone."""
    source = Numbered()
    feed = Feed(source, tier="ram", **options)
    feed.why  # noqa: B018  looks at one sample
    source.read_so_far.clear()
    epochs(feed, 3)
    assert sorted(source.read_so_far) == list(range(LENGTH))
    feed.close()


def test_a_disk_cache_outlives_the_process(options: dict[str, Any], tmp_path: Path) -> None:
    """Another feed over the same source finds what was kept."""
    first = Feed(Numbered(), tier="source", cache=tmp_path, **options)
    there = epochs(first, 1)
    first.close()
    source = Numbered()
    again = Feed(source, tier="source", cache=tmp_path, **options)
    again.why  # noqa: B018
    source.read_so_far.clear()
    assert epochs(again, 1) == there
    assert source.read_so_far == []
    again.close()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("tier", ["ram", "source"])
def test_world_sizes_share_the_same_global_batches(
    options: dict[str, Any], world_size: int, tier: str
) -> None:
    """All ranks' batches of a step in a row are the one rank's, apart from the short last one's padding."""
    options.pop("batch_size")
    alone = Feed(Numbered(), global_batch_size=8, tier=tier, **options)
    ranks = [
        Feed(Numbered(), global_batch_size=8, tier=tier, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    for _ in range(2):
        whole = [batch["n"].tolist() for batch in alone]
        parts = [[batch["n"].tolist() for batch in feed] for feed in ranks]
        joined = [list(chain.from_iterable(part[step] for part in parts)) for step in range(len(whole))]
        assert joined[:-1] == whole[:-1]
        assert joined[-1][: len(whole[-1])] == whole[-1]
        assert sorted(set(chain.from_iterable(joined))) == list(range(LENGTH))
    for feed in (alone, *ranks):
        feed.close()


@pytest.mark.parametrize("stop", [0, 1, 7, 12, 13])
@pytest.mark.parametrize(("before", "after"), [("source", "ram"), ("ram", "source"), ("ram", "ram")])
def test_a_resume_goes_on_with_the_next_step(
    options: dict[str, Any], stop: int, before: str, after: str
) -> None:
    """At any step, on another tier; state taken while a batch is in use counts that batch."""
    feed = Feed(Numbered(), tier=before, **options)
    whole = [batch["n"].tolist() for _ in range(2) for batch in feed]
    feed.close()
    first = Feed(Numbered(), tier=before, **options)
    seen = [batch["n"].tolist() for batch in islice(first, stop)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    first.close()
    second = Feed(Numbered(), tier=after, **options)
    second.load_state_dict(state)
    rest = [batch["n"].tolist() for batch in second]
    if stop < 13:
        rest += [batch["n"].tolist() for batch in second]
    assert seen + rest == whole
    second.close()


def test_a_resume_on_other_data_is_refused(options: dict[str, Any]) -> None:
    """Going on would repeat samples or miss some."""
    state = Feed(Numbered(), **options).state_dict()
    with pytest.raises(SourceChanged, match="fingerprint"):
        Feed(Numbered(name="other"), **options).load_state_dict(state)
    with pytest.raises(SourceChanged, match="103 samples, and now there are 104"):
        Feed(Numbered(length=104), **options).load_state_dict(state)


@pytest.mark.parametrize("tier", ["ram", "source"])
def test_batches_are_the_callers_own(options: dict[str, Any], tier: str) -> None:
    """Kept for ever, written into at once: neither changes what comes later, nor what came before."""
    feed = Feed(Numbered(), tier=tier, **options)
    kept = []
    for epoch in range(3):
        for batch in feed:
            kept.append((epoch, batch, batch["n"].clone()))
            batch["x"].fill_(-1)
    for _, batch, numbers in kept:
        assert torch.equal(batch["n"], numbers)
        assert bool((batch["x"] == -1).all())
    assert sorted(n for epoch, _, numbers in kept for n in numbers.tolist() if epoch == 2) == list(
        range(LENGTH)
    )
    feed.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_may_go_away_while_it_reads(options: dict[str, Any], workers: int) -> None:
    """Threads and processes end with it."""
    before, children = set(threading.enumerate()), set(multiprocessing.active_children())
    feed = Feed(Numbered(length=5000), tier="source", workers=workers, **options)
    batches = iter(feed)
    next(batches)
    del feed, batches
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)  # a queue's own thread ends when it has noticed
    assert set(threading.enumerate()) <= before
    assert set(multiprocessing.active_children()) <= children


def test_a_loop_that_stops_early_begins_the_next_epoch_anew(options: dict[str, Any]) -> None:
    """As a DataLoader does."""
    feed = Feed(Numbered(), tier="ram", **options)
    whole = epochs(Feed(Numbered(), tier="source", **options), 2)
    assert [n for batch in islice(feed, 2) for n in batch["n"].tolist()] == whole[0][:16]
    assert epochs(feed, 1) == [whole[1]]
    feed.close()


def test_random_samples_are_not_held_unasked(options: dict[str, Any]) -> None:
    """They would be the same in every epoch; the sentence says what to do."""
    feed = Feed(Augmented(), workers=0, **options)
    assert feed.tier == "source"
    assert "random generator" in feed.why
    assert "transform=" in feed.why
    first, second = next(iter(feed))[0], next(iter(feed))[0]
    assert not torch.equal(first, second)
    told = Feed(Augmented(), workers=0, cache_random=True, **options)
    assert told.tier == "ram"
    told.close()


def test_any_map_style_dataset_will_do(options: dict[str, Any]) -> None:
    """With worker processes for its reads, in memory afterwards."""
    feed = Feed(Plain(), **options)
    for _ in range(2):
        seen = []
        for x, n in feed:
            assert torch.equal(x[:, 0], n.float())
            seen += n.tolist()
        assert sorted(seen) == list(range(40))
    assert feed.tier == "ram"
    assert feed.num_workers >= 1
    feed.close()


def test_a_subset_is_held_alone(options: dict[str, Any]) -> None:
    """Memory is needed for the samples that are used."""
    source = Numbered(length=100_000)
    feed = Feed(source, limit=50, tier="ram", **options)
    found = epochs(feed, 2)
    assert sorted(found[0]) == sorted(found[1])
    assert len(set(found[0])) == 50
    assert len(set(source.read_so_far)) <= 51
    feed.close()


def test_giving_memory_back_changes_no_batch(options: dict[str, Any]) -> None:
    """In mid-epoch, while filling and when filled."""
    whole = epochs(Feed(Numbered(), tier="source", **options), 3)
    for when in (20, 130):
        feed = Feed(Numbered(), tier="ram", **options)
        seen: list[int] = []
        for _ in range(3):
            for batch in feed:
                seen += batch["n"].tolist()
                if len(seen) // 8 == when // 8 and feed.tier == "ram":
                    feed.shrink("the test says so")
        assert seen == list(chain.from_iterable(whole))
        assert feed.tier == "source"
        assert "left ram: the test says so" in feed.why
        feed.close()


def test_moving_from_one_memory_to_another_reads_nothing_again(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held is taken along, from a device's memory (here the host's own) to the shared one."""
    monkeypatch.setattr(Holding, "_room", lambda self: Room(vram=1 << 30, ram=1 << 30))
    whole = epochs(Feed(Numbered(), tier="source", **options), 3)
    source = Numbered()
    feed = Feed(source, reserve=0, **options)
    assert feed.tier == "vram"
    assert "fits 1.0 GiB free, 0 B kept for the model (reserve=)" in feed.why
    found = epochs(feed, 1)
    source.read_so_far.clear()
    feed.shrink("the test says so")
    assert feed.tier == "ram"
    assert [*found, *epochs(feed, 2)] == whole
    assert source.read_so_far == []
    feed.close()


def test_memory_that_cannot_be_had_after_all_is_told(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation that fails falls to the next tier, and says so; the batches are the same."""

    def refuse(*_: Any) -> Rows:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr(Holding, "_room", lambda self: Room(vram=1 << 30, ram=1 << 30))
    monkeypatch.setattr(Rows, "allocate", refuse)
    feed = Feed(Numbered(), reserve=0, **options)
    assert feed.tier == "ram"
    assert "vram could not be had: CUDA out of memory" in feed.why
    assert epochs(feed, 2) == epochs(Feed(Numbered(), tier="source", **options), 2)
    feed.close()


def test_a_source_that_gives_everything_at_once_is_read_that_way(options: dict[str, Any]) -> None:
    """A database's rows by one statement, not by keys; only those that are used are kept."""

    class Scanned(Numbered):
        def scan(self, *, in_order: bool) -> Iterator[tuple[Indices, Any]]:
            for begin in range(0, LENGTH, 20):
                numbers = np.arange(begin, min(begin + 20, LENGTH))[::-1].copy()
                yield numbers, Numbered().read(numbers)

    for limit in (None, 31):
        source = Scanned()
        feed = Feed(source, tier="ram", limit=limit, **options)
        feed.why  # noqa: B018
        source.read_so_far.clear()
        assert epochs(feed, 2) == epochs(Feed(Numbered(), tier="source", limit=limit, **options), 2)
        assert source.read_so_far == []
        feed.close()


def test_the_last_batch_can_be_left_out(options: dict[str, Any]) -> None:
    """And the length says so."""
    assert len(Feed(Numbered(), **options)) == 13
    feed = Feed(Numbered(), drop_last=True, tier="source", **options)
    assert (len(feed), len(list(feed))) == (12, 12)


def test_an_empty_source_gives_no_batches(options: dict[str, Any]) -> None:
    """Not an error: a DataLoader over nothing is empty too."""
    feed = Feed(Numbered(length=0), **options)
    assert (len(feed), list(feed)) == (0, [])


def test_wrong_use_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    """At once, with the value and what to do."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"device": "warp"}, "no device 'warp'"),
        ({"device": "meta"}, "device 'meta': take cpu or cuda"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"workers": -1}, "workers is -1"),
        ({"cache_bytes": 5}, "without a cache"),
        ({"rank": 3, "world_size": 2}, "no rank 3 among 2"),
        ({"rank": 1}, "give both, or neither"),
        ({"batch_size": 1, "global_batch_size": 9, "rank": 0, "world_size": 2}, "9 does not divide"),
    ]
    for wrong, said in cases:
        if wrong.get("device") == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(UsageError, match=said):
            len(list(Feed(Numbered(), **{**options, **wrong})))
    with pytest.raises(UsageError, match="no tier 'tape'"):
        Feed(Numbered(), tier="tape", **options)
    with pytest.raises(UsageError, match="IterableDataset"):
        Feed(Endless(), **options)


def test_an_error_of_the_source_comes_where_its_batch_would(options: dict[str, Any]) -> None:
    """After the batches before it, as itself."""

    class Broken(Numbered):
        def read(self, indices: Indices) -> Any:
            if 50 in indices:
                raise OSError("the disk is gone")
            return super().read(indices)

    options["shuffle"] = False
    feed = Feed(Broken(), tier="source", **options)
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        for batch in feed:
            seen += batch["n"].tolist()
    assert seen == list(range(48))


def test_a_feed_can_be_pickled_before_and_after_use(options: dict[str, Any]) -> None:
    """Trainers that spawn their ranks do that; what is open stays here."""
    feed = Feed(Numbered(), tier="ram", **options)
    there = epochs(pickle.loads(pickle.dumps(feed)), 1)
    assert epochs(feed, 1) == there
    copy = pickle.loads(pickle.dumps(feed))
    assert epochs(copy, 1) == epochs(feed, 1)
    feed.close()
    copy.close()


def test_the_users_random_numbers_are_left_alone(options: dict[str, Any]) -> None:
    """Nothing is drawn from torch's, numpy's or random's own generators."""
    torch.manual_seed(5)
    np.random.seed(5)
    state, drawn = torch.get_rng_state(), np.random.get_state(legacy=False)
    for workers in (0, 1):
        feed = Feed(Plain(), workers=workers, **options)
        list(feed)
        feed.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert repr(np.random.get_state(legacy=False)) == repr(drawn)


@pytest.mark.parametrize(
    "text", [b"memory = 5\n", b"\xff\xfe\n", b"[memory\n", b'[memory]\npeak_bytes = "much"\n']
)
def test_settings_that_cannot_be_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    """With the file, and what to give in its place."""
    (tmp_path / "stoker.toml").write_bytes(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"stoker\.toml"):
        next(iter(Feed(list(range(8)), 4, device="cpu", workers=0)))
