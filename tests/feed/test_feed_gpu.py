"""A feed onto a GPU: the same batches from every tier, moving between them, giving memory back."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from feed.numbered import Numbered
from stoker import Feed
from stoker.feed import feed as feed_module
from stoker.feed import holding as holding_module
from stoker.feed.choice import Room
from stoker.feed.holding import Holding
from stoker.feed.sources.sql import SqlSource
from stoker.feed.tiers import bus as bus_module
from stoker.feed.tiers.bus import Bus
from stoker.feed.tiers.registered import Registered

pytestmark = pytest.mark.gpu
LENGTH = 203
GB = 1 << 30
ROW = 4 * 20_000 + 8


def source() -> Numbered:
    return Numbered(LENGTH, numbers=20_000)


@pytest.fixture
def options() -> dict[str, Any]:
    return {"batch_size": 16, "shuffle": True, "seed": 3, "device": "cuda"}


@pytest.fixture
def small_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A card with room for a third of the samples."""
    vram = int(LENGTH * ROW / 3 / 0.9)
    monkeypatch.setattr(Holding, "_room", lambda self: Room(vram=vram, ram=8 * GB, shm=8 * GB))
    yield


def epochs(feed: Feed, count: int) -> list[dict[str, torch.Tensor]]:
    """All batches of so many epochs, with a little work on each."""
    batches = []
    for _ in range(count):
        for batch in feed:
            torch.cuda._sleep(100_000)
            batches.append({name: tensor.clone() for name, tensor in batch.items()})
    return [{name: tensor.cpu() for name, tensor in batch.items()} for batch in batches]


def assert_equal(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.fixture
def expected(options: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """What a feed on the CPU gives that holds nothing."""
    return epochs(Feed(source(), tier="source", **{**options, "device": "cpu"}), 3)


@pytest.mark.parametrize("tier", ["vram", "ram", "source"])
def test_every_tier_gives_the_same(
    tier: str, options: dict[str, Any], expected: list[dict[str, torch.Tensor]]
) -> None:
    """Bit by bit, while filling and when filled."""
    feed = Feed(source(), tier=tier, reserve=GB, **options)
    assert_equal(epochs(feed, 3), expected)
    assert feed.tier == tier
    feed.close()


@pytest.mark.usefixtures("small_card")
def test_a_window_gives_the_same(options: dict[str, Any], expected: list[dict[str, torch.Tensor]]) -> None:
    """A third of the samples stays on the card, the others come in their turn; each once an epoch."""
    feed = Feed(source(), reserve=0, **options)
    assert feed.tier == "window"
    assert_equal(epochs(feed, 3), expected)
    assert "67 of 203 samples stay in VRAM, copy engines bring the others ahead" in feed.why
    feed.close()


@pytest.mark.usefixtures("small_card")
def test_a_window_is_given_back(options: dict[str, Any], expected: list[dict[str, torch.Tensor]]) -> None:
    """In mid-epoch, to ram and then to nothing, without a batch lost."""
    feed = Feed(source(), reserve=0, **options)
    found = []
    for batch in chain.from_iterable(iter(feed) for _ in range(3)):
        found.append({name: tensor.cpu() for name, tensor in batch.items()})
        if len(found) in (16, 21):
            feed.shrink("the test says so")
            assert feed.tier == {16: "ram", 21: "source"}[len(found)]
    assert_equal(found, expected)
    feed.close()


@pytest.mark.usefixtures("small_card")
def test_a_window_that_does_not_fit_after_all(
    options: dict[str, Any], expected: list[dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples come from ram, and it is told."""

    def refuse(self: Bus, count: int) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr(Bus, "keep", refuse)
    feed = Feed(source(), reserve=0, **options)
    assert_equal(epochs(feed, 3), expected)
    assert feed.tier == "ram"
    assert "window could not be had: CUDA out of memory" in feed.why
    feed.close()


def test_the_feed_moves_up_when_the_need_is_known(
    options: dict[str, Any], expected: list[dict[str, torch.Tensor]]
) -> None:
    """Nothing is said of the model: ram first, then vram after 3 steps, with nothing read twice."""
    made = source()
    feed = Feed(made, **options)
    assert feed.tier == "ram"
    assert "not vram: what the model needs is not known yet" in feed.why
    made.asked.clear()
    found = epochs(feed, 3)
    assert feed.tier == "vram"
    assert "peak of 3 steps" in feed.why
    assert_equal(found, expected)
    assert sorted(made.asked) == list(range(LENGTH))
    feed.close()


def test_rows_of_a_database_move_up_within_two_short_epochs(tmp_path: Path, options: dict[str, Any]) -> None:
    """They fill memory before the first batch, and come by eights; an epoch may have fewer batches."""
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, x BLOB)")
        database.executemany("INSERT INTO rows (x) VALUES (?)", [(bytes([row]) * 64,) for row in range(80)])
    database.close()
    rows = SqlSource(f"sqlite:///{tmp_path}/rows.db", "SELECT id, x FROM rows")
    with closing(Feed(rows, **options)) as feed:
        first = epochs(feed, 1)
        assert len(first) == 5 and feed.tier == "vram", feed.why
        seen = torch.cat([batch["id"] for batch in first + epochs(feed, 1)])
    assert sorted(seen.tolist()) == sorted([*range(1, 81)] * 2)


def test_the_feed_leaves_what_a_later_step_is_expected_to_need(
    options: dict[str, Any], expected: list[dict[str, torch.Tensor]]
) -> None:
    """The first steps need little, and it does not take what they leave."""
    feed = Feed(source(), **options)
    feed.expect(torch.cuda.mem_get_info()[1], "a step in epoch 7, as predicted")
    assert_equal(epochs(feed, 3), expected)
    assert feed.tier == "ram"
    assert "a step in epoch 7, as predicted" in feed.why
    feed.close()


@pytest.mark.usefixtures("small_card")
def test_the_feed_moves_up_to_a_window(
    options: dict[str, Any], expected: list[dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the card has room for a part."""
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 0)
    feed = Feed(source(), **options)
    assert feed.tier == "ram"
    assert_equal(epochs(feed, 3), expected)
    assert feed.tier == "window"
    assert "67 of 203 samples stay in VRAM" in feed.why
    feed.close()


@pytest.mark.usefixtures("small_card")
@pytest.mark.parametrize("step", [1, 14, 20])
def test_a_resume_on_another_tier(
    step: int, options: dict[str, Any], expected: list[dict[str, torch.Tensor]]
) -> None:
    """Counted by what was handed out, not by what was gathered ahead."""
    feed = Feed(source(), reserve=0, **options)
    batches = chain.from_iterable(iter(feed) for _ in range(3))
    for _ in range(step):
        next(batches)
    state = feed.state_dict()
    feed.close()
    resumed = Feed(source(), tier="ram", **options)
    resumed.load_state_dict(state)
    whole_epochs = 3 - state["epoch"]
    assert_equal(epochs(resumed, whole_epochs), expected[step:])
    resumed.close()


@pytest.mark.parametrize("tier", ["vram", "ram", "source"])
def test_a_feed_let_go_of_in_the_middle(tier: str, options: dict[str, Any]) -> None:
    """With gathers in flight; the batches handed out stay good."""
    feed = Feed(source(), tier=tier, reserve=GB, **options)
    for _ in feed:
        pass
    torch.cuda._sleep(50_000_000)
    batches = iter(feed)
    kept = [next(batches) for _ in range(5)]
    del feed, batches
    for batch in kept:
        assert torch.equal(
            batch["values"][:, 0].cpu(), source().read(batch["number"].cpu().numpy())["values"][:, 0]
        )


def test_settings_tell_what_the_model_needs(
    options: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[memory] peak_bytes in stoker.toml stands for `reserve`."""
    monkeypatch.setattr(feed_module, "_SETTINGS", tmp_path / "stoker.toml")
    (tmp_path / "stoker.toml").write_text("[memory]\npeak_bytes = 1000000\n")
    feed = Feed(source(), **options)
    assert feed.tier == "vram"
    feed.close()


@pytest.mark.parametrize("few", [1, 8])
@pytest.mark.parametrize("kind", ["vram", "kernel", "engines", "buffer", "plain"])
def test_a_loop_may_change_its_stream(
    options: dict[str, Any],
    expected: list[dict[str, torch.Tensor]],
    few: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first batch on one stream that is busy, the rest on another: they wait for what they read.

    However samples come to the card: the kinds are those of the bus's own tests.
    """
    monkeypatch.setattr(holding_module, "_FEW", few)
    if kind in ("buffer", "plain"):
        monkeypatch.setattr(bus_module, "find_spec", lambda name: None)
    if kind == "plain":
        monkeypatch.setattr(Registered, "add", lambda self, memory: "not today")
    if kind == "engines":
        vram = int(LENGTH * ROW / 3 / 0.9)
        monkeypatch.setattr(Holding, "_room", lambda self: Room(vram=vram, ram=8 * GB, shm=8 * GB))
    tier = {"vram": "vram", "engines": "window"}.get(kind, "ram")
    side = torch.cuda.Stream()
    with closing(Feed(source(), tier=tier, reserve=0, **options)) as feed:
        found = epochs(feed, 1)
        for _ in range(2):
            batches = iter(feed)
            torch.cuda._sleep(50_000_000)
            found.append({name: tensor.cpu() for name, tensor in next(batches).items()})
            torch.cuda._sleep(50_000_000)
            with torch.cuda.stream(side):
                found += [{name: tensor.cpu() for name, tensor in batch.items()} for batch in batches]
        assert feed.tier == tier
        told = {"kernel": "gathered by the GPU", "engines": "copy engines", "plain": "not by a buffer"}
        assert told.get(kind, "gathered by the CPU" if kind == "buffer" else "") in feed.why
    assert_equal(found, expected)


def test_a_batch_queued_on_a_busy_stream_is_waited_for_on_another(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the CPU gathers, and a copy is behind a long step: the next stream reads it once it is there."""
    monkeypatch.setattr(bus_module, "find_spec", lambda name: None)
    side = torch.cuda.Stream()
    with closing(Feed(source(), tier="ram", reserve=0, **options)) as feed:
        epochs(feed, 1)
        batches = iter(feed)
        next(batches)
        for _ in range(4):
            torch.cuda._sleep(100_000_000)  # the batch after the next is queued behind it
            next(batches)
            with torch.cuda.stream(side):
                batch = next(batches)
                found = {name: tensor.clone() for name, tensor in batch.items()}
            side.synchronize()
            numbers = found["number"].cpu().numpy()
            assert torch.equal(found["values"].cpu(), source().read(numbers)["values"])
            torch.cuda.synchronize()
