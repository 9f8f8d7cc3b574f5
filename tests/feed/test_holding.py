"""Samples at work: moved in mid-epoch, shared with others, failing on the way, few of many, none at all."""

import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feed.test_feed import Numbered, epochs
from stoker.errors import UsageError
from stoker.facts import host
from stoker.feed import Feed
from stoker.feed.holding import Holding
from stoker.feed.order import Shard
from stoker.feed.sources.base import Indices
from stoker.feed.tiers import spread
from stoker.feed.tiers.ram import allocated
from stoker.feed.tiers.rows import Rows


@pytest.fixture
def options() -> dict[str, Any]:
    return {"batch_size": 8, "shuffle": True, "seed": 3, "device": "cpu"}


@pytest.mark.parametrize("length", [100, 132, 150, 260])
@pytest.mark.parametrize("step", [0, 4, 48, 64])
def test_samples_that_move_in_mid_epoch(length: int, step: int) -> None:
    """From one memory to another, whatever is left of the epoch then: it goes on, and nothing is missed."""
    feed = Feed(Numbered(length), batch_size=2, device="cpu", tier="ram")
    for _ in feed:
        pass
    holding = feed._hold()
    seen: list[int] = []
    for at, batch in enumerate(feed):
        seen += batch["n"].tolist()
        if at == step:
            assert holding._layout is not None
            above = Rows.allocate(holding._layout, length, "cpu")
            above.put(np.arange(length), Numbered(length).read(np.arange(length)))
            holding._rows = above
    assert seen == list(range(length))
    feed.close()


def test_a_second_feed_of_the_same_finds_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the samples have in memory already, be it another rank's doing, is not missing to them."""

    class Large(Numbered):
        def read(self, indices: Indices) -> Any:
            return {**super().read(indices), "much": torch.zeros(len(indices), 1 << 16)}

    real, size = host.read(), 40 << 18
    source = Large(40, name="large")

    def read() -> Any:
        taken = 0 if first is None else allocated(first._hold()._content)
        return replace(real, memory_free_bytes=2 * size - taken)

    first: Feed | None = None
    monkeypatch.setattr(host, "read", read)
    feed = Feed(source, batch_size=4, device="cpu")
    assert feed.tier == "ram"
    first = feed
    second = Feed(source, batch_size=4, device="cpu")
    assert second.tier == "ram"
    second.close()
    feed.close()


def test_a_second_feed_does_not_take_what_the_first_one_has(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A card is one: what samples of another feed take of it is not free, until that is closed."""
    size = 100 * (3 * 8 + 8)
    monkeypatch.setattr(Holding, "_free_vram", lambda self: 2 * size)
    with closing(Feed(Numbered(100, name="train"), reserve=0, **options)) as train:
        assert train.tier == "vram"
        with closing(Feed(Numbered(100, name="val"), reserve=0, **options)) as val:
            assert val.tier != "vram"
        with closing(Feed(Numbered(50, name="small"), reserve=0, **options)) as small:
            assert small.tier == "vram"
        assert train._hold()._chosen().tier == "vram"  # its own is not missing to it
    with closing(Feed(Numbered(100, name="val"), reserve=0, **options)) as val:
        assert val.tier == "vram"


@pytest.mark.parametrize("handed", [(1, 1, 1, 1), (8,), (3, 3)])
def test_a_window_that_is_not_filled_yet_is_no_part_of_the_peak(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], handed: tuple[int, ...]
) -> None:
    """What the model needs is what was in use: samples that are yet to come to the card were not."""
    row = 3 * 8 + 8
    monkeypatch.setattr(Holding, "_free_vram", lambda self: 79 * row)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 20 * row)
    monkeypatch.setattr(Holding, "_fill_window", lambda self: None)
    with (
        closing(Feed(Numbered(90, name="train"), reserve=20 * row, **options)) as train,
        closing(Feed(Numbered(10, name="valid"), **options)) as valid,
    ):
        next(iter(train))
        assert (train.tier, valid.tier) == ("window", "ram")
        assert train.on_device == int(59 * row * 0.9)
        for feed in (train, valid):
            feed._hold()._device = torch.device("cuda", 0)
        for batches in handed:  # the peak is that of the first three, however many come at a time
            valid._hold()._move_up(batches)
        assert valid._hold()._wish.reserve == 20 * row
        assert valid.tier == "window"
        assert 20 * row + train.on_device + valid.on_device <= 79 * row
        for feed in (train, valid):  # whose rows are the host's all the same
            feed._hold()._device = torch.device("cpu")


@pytest.mark.parametrize("ahead", [False, True])
def test_over_a_bus_a_shard_is_asked_for_no_earlier_than_allowed(ahead: bool) -> None:
    """Who draws as it is asked may draw from the script's generators: not before the batch is wanted."""

    class Direct:
        why = "at once"

        def bring(self, places: list[Indices], few: int) -> list[Indices]:
            return places

        def queue(self, places: Indices) -> Indices:
            return places

        def take(self, places: Indices) -> list[Any]:
            return [source.read(places)]

        def close(self) -> None:
            pass

    source, drawn = Numbered(40, name="bus"), []

    def draw() -> Iterator[Shard]:
        for begin in range(0, 40, 8):
            drawn.append(begin)
            yield Shard(samples=np.arange(begin, begin + 8))

    with closing(Feed(source, batch_size=8, device="cpu", tier="ram")) as feed:
        list(feed)
        holding: Any = feed._hold()
        holding._one_by_one, holding._bus = True, Direct()
        told = [
            (shard.samples.tolist() == batch["n"].tolist(), len(drawn))
            for shard, batch in holding.batches(draw(), ahead=ahead)
        ]
        assert told == [(True, min(5, count + ahead)) for count in range(1, 6)]


def test_memory_is_given_back_on_a_device_that_has_none_left(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """To take samples along needs some of it: those that cannot be are read again."""
    monkeypatch.setattr(Holding, "_free_vram", lambda self: 1 << 20)
    monkeypatch.setattr(spread, "_ROUND_BYTES", 20 * (3 * 8 + 8))
    source, plain, calls = Numbered(name="full"), Rows.get, 0

    def get(self: Rows, indices: torch.Tensor) -> Any:
        nonlocal calls
        calls += type(self) is Rows
        if calls > 2 and type(self) is Rows:
            raise torch.OutOfMemoryError("none left\nat all")
        return plain(self, indices)

    with closing(Feed(source, reserve=0, **options)) as feed:
        found = [[int(n) for batch in feed for n in batch["n"]]]
        assert (feed.tier, len(set(source.read_so_far))) == ("vram", 103)
        source.read_so_far.clear()
        monkeypatch.setattr(Rows, "get", get)
        found.append([])
        for step, batch in enumerate(feed):
            found[1] += batch["n"].tolist()
            if step == 2:
                feed.shrink("no memory")
        assert [sorted(epoch) for epoch in found] == [list(range(103))] * 2
        assert feed.tier == "ram"
        assert "(some samples are read again, not taken along: none left)" in feed.why
        assert len(source.read_so_far) <= 103 - 2 * 20


@pytest.mark.parametrize("tier", ["vram", "ram"])
@pytest.mark.parametrize("at", [0, 3, 12])
def test_a_batch_that_there_is_no_memory_for_is_made_a_tier_lower(
    tier: str, at: int, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """In mid-epoch, and at its ends: no sample is lost, none comes twice, and the reason is told."""
    monkeypatch.setattr(Holding, "_free_vram", lambda self: 1 << 20)
    plain, calls = Rows.get_each, 0

    def get_each(self: Rows, indices: torch.Tensor, sizes: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried 3 GiB\nof many")
        return plain(self, indices, sizes)

    expected = epochs(Feed(Numbered(), tier="source", **options), 3)
    with closing(Feed(Numbered(name=f"{tier} {at}"), tier=tier, reserve=0, **options)) as feed:
        found = epochs(feed, 1)
        assert feed.tier == tier
        monkeypatch.setattr(Rows, "get_each", get_each)
        found += epochs(feed, 2)
        assert found == expected
        assert feed.tier == {"vram": "ram", "ram": "source"}[tier]
        assert f"left {tier}: a batch could not be made, CUDA out of memory. Tried 3 GiB)" in feed.why


def test_a_batch_that_no_tier_has_memory_for_is_told(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Each tier is tried, the lowest once more; what was handed out before is counted."""
    monkeypatch.setattr(Holding, "_free_vram", lambda self: 1 << 20)
    tried: list[str] = []
    made = 0

    def fail(batch: Any) -> Any:
        nonlocal made
        made += 1
        if made > 5:
            tried.append(feed.tier)
            raise torch.OutOfMemoryError("none left")
        return batch

    with closing(Feed(Numbered(name="none"), reserve=0, transform=fail, **options)) as feed:
        with pytest.raises(torch.OutOfMemoryError, match="none left"):
            list(feed)
        assert tried == ["vram", "ram", "source", "source"]
        assert feed.state_dict()["samples"] == 40


def test_nothing_of_a_failed_batch_is_alive_when_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The error's frames hold what was made by then: memory that the lower tier needs."""
    made: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def fail(batch: Any) -> Any:
        part = batch["x"] + 1
        if not made:
            made.append(weakref.ref(part))
            raise torch.OutOfMemoryError("none left")
        return batch

    def shrink(self: Holding, why: str) -> None:
        alive.append(made[0]() is not None)

    monkeypatch.setattr(Holding, "shrink", shrink)
    with closing(Feed(Numbered(name="alive"), tier="ram", transform=fail, **options)) as feed:
        assert len(list(feed)) == 13
    assert alive == [False]


def test_a_transform_that_fails_hands_nothing_out(options: dict[str, Any]) -> None:
    """The state counts what the loop was given."""
    calls = 0

    def fail(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("no")
        return batch

    feed = Feed(Numbered(), transform=fail, **options)
    handed = 0
    with pytest.raises(RuntimeError, match="no"):
        for batch in feed:
            handed += len(batch["n"])
    assert feed.state_dict()["samples"] == handed
    feed.close()


def test_a_few_rows_of_many_are_not_read_by_a_scan(options: dict[str, Any]) -> None:
    """A scan reads everything."""

    class Scanned(Numbered):
        def scan(self, *, in_order: bool) -> Iterator[tuple[Indices, Any]]:
            raise AssertionError("all of it was read")

    feed = Feed(Scanned(), limit=9, tier="ram", **options)
    assert len(list(chain.from_iterable(epochs(feed, 1)))) == 9
    feed.close()


def test_no_samples_at_all() -> None:
    """Nothing comes, and nothing fails: a validation set may be empty."""
    feed = Feed(Numbered(0), batch_size=4, device="cpu")
    assert (len(feed), list(feed), feed.tier, feed.why) == (0, [], "source", "source: there are no samples")
    feed.load_state_dict(feed.state_dict())
    feed.shrink()
    feed.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ahead", value) for value in (-1, 2.5)),
        *(("reserve", value) for value in (-5, "2GB", 1.5, True, float("inf"))),
        *(("global_batch_size", value) for value in (0, -8, "64", 8.0)),
        *(("workers", value) for value in (-1, "4", 2.5, True)),
        *(("cache_bytes", value) for value in (-1, "1GB", float("nan"))),
    ],
)
def test_wrong_numbers_are_told(name: str, value: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """With what would be right."""
    cache: dict[str, Any] = {"cache": tmp_path} if name == "cache_bytes" else {}
    with pytest.raises(UsageError, match=f"^{name} is {re.escape(repr(value))}: .*(give|take) "):
        Feed(Numbered(), **{name: value}, **cache, **options)


def test_numbers_of_other_kinds_are_taken(tmp_path: Path, options: dict[str, Any]) -> None:
    """Bytes as they are written, numpy's integers, and a seed of any size: with workers too."""
    feed = Feed(Numbered(), reserve=15e9, cache=tmp_path, cache_bytes=1e9, workers=np.int64(0), **options)  # type: ignore[arg-type]
    assert (feed._reserve, feed._workers) == (15_000_000_000, 0)
    feed.close()
    for seed in (-(2**70), np.int64(3)):
        chosen = {**options, "seed": seed, "tier": "source"}
        with (
            closing(Feed(Numbered(), workers=1, **chosen)) as one,
            closing(Feed(Numbered(), **chosen)) as other,
        ):
            assert torch.equal(next(iter(one))["n"], next(iter(other))["n"])


@pytest.mark.parametrize("wrong", ["a file", "no room"])
def test_a_cache_that_cannot_be_used_is_told_once(wrong: str, tmp_path: Path) -> None:
    """It was asked for: a warning says why there is none. Every epoch and worker goes on without a word."""
    (tmp_path / "file").write_text("here already")
    options: dict[str, Any] = {"cache": tmp_path / "file"}
    if wrong == "no room":
        options = {"cache": tmp_path / "cache", "cache_bytes": 0}
    feed = Feed(Numbered(), 8, device="cpu", tier="source", workers=2, **options)
    with pytest.warns(UserWarning, match=re.escape(f"the cache in {options['cache']} is not used: ")) as told:
        first = [batch["n"].tolist() for batch in feed]
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [batch["n"].tolist() for batch in feed] == first
        feed.close()
        assert [batch["n"].tolist() for batch in feed] == first
    assert "every sample comes from the source" in feed.why
    feed.close()
