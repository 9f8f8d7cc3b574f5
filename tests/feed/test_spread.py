"""Samples spread over the cards of all ranks, in real processes: each on one, and the one rank's batches."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
import pytest

from feed.numbered import Numbered
from feed.nursery import Nursery
from feed.spread_nursery import AT_ONCE, CARD, GLOBAL, LENGTH, MANY, NUMBERS, ROW, SEED, Told, tell
from stoker.feed.exchange import rows_of, share_of
from stoker.feed.order import Order

ORDER = Order(length=LENGTH, batch_size=GLOBAL, shuffle=True, seed=SEED)

# (what, so many ranks, options) to what each of them told; `killed` is one that ends by a signal.
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    nursery = Nursery("feed.spread_nursery", tmp_path_factory.mktemp("flags"))

    def run(what: str, ranks: int, killed: int = -1, **options: Any) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(what)
        told = json.dumps(options, separators=(",", ":"))
        children = [nursery.start(what, rank, ranks, folder, told)[0] for rank in range(ranks)]
        codes = [nursery.wait(child) for child in children]
        assert codes == [-signal.SIGKILL if rank == killed else 0 for rank in range(ranks)]
        kept = [folder / f"{rank}.json" for rank in range(ranks) if rank != killed]
        return [json.loads(path.read_text()) for path in kept]

    yield run
    nursery.close()


def truth(epoch: int, start: int = 0, stop: int | None = None, order: Order = ORDER) -> Told:
    """The global batches of an epoch, made here without a feed."""
    source = Numbered(LENGTH, numbers=NUMBERS)
    steps = range(start, order.steps if stop is None else stop)
    return tell(source.read(order.batch(epoch, step)) for step in steps)


def joined(parts: list[Told]) -> Told:
    """All ranks' parts of each step in a row, without the padding of a short last batch."""
    steps = [list(chain.from_iterable(step)) for step in zip(*parts, strict=True)]
    return [step[:GLOBAL] if len(step) >= GLOBAL else step[: LENGTH % GLOBAL] for step in steps]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_all_ranks_together_get_the_one_ranks_batches(run: Run, ranks: int) -> None:
    """Three epochs of a full shuffle; each rank holds its share, and no sample is read twice."""
    told = run("train_epochs", ranks)
    assert all("all ranks agree on a tier when the first epoch begins" in one["before"] for one in told)
    for epoch in range(3):
        parts = [one["epochs"][epoch] for one in told]
        assert joined([part["batches"] for part in parts]) == truth(epoch)
        for part in parts:
            assert part["tier"] == "spread"
            assert f"over {ranks} cards" in part["why"]
            assert (
                part["bytes"] == rows_of(LENGTH, ranks) * ROW == (share_of(LENGTH, ranks) + 2 * ranks) * ROW
            )
    for one in told:
        assert len(one["sent"]) > 2 * 2 * 2  # two leaves, in several rounds of two exchanges
        assert max(one["sent"]) <= 2 * (AT_ONCE + ranks) * ROW
        moved = sum(one["sent"]) / 2 / 2  # of each exchange, out or in
        assert moved == pytest.approx(LENGTH * ROW / ranks * (ranks - 1) / ranks, rel=0.25)
    # Beside the sample that each rank looks at first, and the padding.
    looked, padding = Counter({0: ranks}), -LENGTH % GLOBAL % ranks
    for parts in ([one["epochs"][0] for one in told], [one["epochs"][2] for one in told]):
        asked = Counter(chain.from_iterable(part["asked"] for part in parts)) - looked
        assert set(asked) == set(range(LENGTH))
        assert asked.total() == LENGTH + padding


def test_a_loop_goes_on_with_any_number_of_ranks(run: Run) -> None:
    """From state to state: 4 ranks, 2, 1 and 4 again, each left in the middle of an epoch."""
    expected = truth(0) + truth(1) + truth(2) + truth(3)
    found: Told = []
    state = None
    for ranks, steps in ((4, 10), (2, 6), (1, 3), (4, 9)):
        told = run("train_steps", ranks, steps=steps, state=state)
        assert {one["tier"] for one in told} == {"spread" if ranks > 1 else "source"}
        states = [one["state"] for one in told]
        assert states == states[:1] * ranks
        state = states[0]
        found += joined([one["batches"] for one in told])
    assert found == expected[: len(found)]
    assert len(found) == 28


@pytest.mark.parametrize(
    ("victim", "sends"),
    [
        (2, 5),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [(0, 1), (0, 8), (1, 2), (3, 1), (3, 7)]),
    ],
)
def test_a_rank_killed_amid_an_exchange_ends_the_others_with_a_word(
    run: Run, victim: int, sends: int
) -> None:
    """At once, not after half an hour; and nothing that they held is taken for whole."""
    told = run("be_killed", 4, killed=victim, victim=victim, sends=sends)
    for one in told:
        assert one["error"] == "RankLost"
        assert "could not exchange samples with the 3 others" in one["text"]
        assert "start all ranks again from the last checkpoint" in one["text"]
        assert (one["tier"], one["why"]) == ("source", "source: an exchange of samples broke off")


@pytest.mark.parametrize(
    ("option", "values", "said"),
    [
        ("seed", [3, 3, 3, 4], "seed is 3 on rank 0 and 4 on rank 3"),
        pytest.param(
            "global_batch_size", [16, 8], "batch_size is 16 on rank 0 and 8 on rank 1", marks=pytest.mark.slow
        ),
        pytest.param("limit", [None, 50], "selection is 'all' on rank 0", marks=pytest.mark.slow),
        pytest.param("tier", ["vram", "spread"], "tier is 'vram' on rank 0", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_disagree_are_told(run: Run, option: str, values: list[Any], said: str) -> None:
    """All of them, what differs and where."""
    for one in run("fail", len(values), **{option: values}):
        assert one["error"] == "RanksDisagree"
        assert said in one["text"]


@pytest.mark.parametrize("epoch", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_does_not_come_is_named(run: Run, epoch: int) -> None:
    """After some patience; the one that was waited for is told when it comes."""
    told = run("wait", 4, late=1, epoch=epoch)
    assert [one["error"] for one in told] == ["RankLost"] * 4
    assert all("did not begin an epoch of this feed within 0:00:01" in one["text"] for one in told)
    if epoch:  # in the first there is nobody yet who could tell
        assert "Ranks 1 failed to pass monitoredBarrier" in told[0]["text"]


def test_a_rank_that_runs_out_of_memory_goes_on_in_its_epoch(run: Run) -> None:
    """It meets nobody, for the others are at their step; when the next begins they go a tier lower too."""
    told = run("run_out", 2, who=1)
    for epoch in range(3):
        assert joined([one["epochs"][epoch] for one in told]) == truth(epoch)
    assert {one["tier"] for one in told} == {"source"}
    assert "left spread: a batch could not be made" in told[1]["why"]
    assert "rank 1 gave its part back" in told[0]["why"]


def test_a_rank_without_memory_for_an_exchange_sends_all_a_tier_lower(run: Run) -> None:
    """They know before anything is sent: no rank is lost, and no sample."""
    told = run("lack_room", 2)
    for epoch in range(4):
        parts = [one["epochs"][epoch] for one in told]
        assert joined([part["batches"] for part in parts]) == truth(epoch)
        assert {part["tier"] for part in parts} == {"spread" if epoch < 2 else "source"}
    whys = [one["epochs"][3]["why"] for one in told]
    assert "(left spread: another rank has no memory for samples on their way)" in whys[0]
    assert "(left spread: none on the way)" in whys[1]


def test_a_rank_that_asks_before_there_is_a_group_is_one_of_it(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It holds its part all the same; and what a feed met in ends with it, though nobody has closed it."""
    told = run("ask_early", 2, who=0, world=2, folder=str(tmp_path_factory.mktemp("again")))
    assert told[0]["early"].startswith("source")
    assert joined([one["batches"] for one in told]) == truth(0)
    assert {one["tier"] for one in told} == {"spread"}
    assert [one["groups"] for one in told] == [[1, 0]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_losses_are_the_one_ranks(run: Run, how: str) -> None:
    """Under DDP and FSDP: the same global batches, and so the same losses but for the order of sums."""
    [alone], several = run("train_model", 1, how="alone", epochs=2), run("train_model", 2, how=how, epochs=2)
    assert [one["tier"] for one in several] == ["spread"] * 2
    together = [
        list(chain.from_iterable(step)) for step in zip(*(one["numbers"] for one in several), strict=True)
    ]
    assert together == alone["numbers"]
    for one in several:
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=1e-5)
        for weight, expected in zip(one["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


# --- the rest, by name ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": "blocks", "block_size": 8, "group_size": 3},
        {"shuffle": False},
        {"drop_last": True},
        {"limit": 77},
        {"subset": list(range(100, 9, -1))},
    ],
    ids=str,
)
def test_every_order_in_which_a_sample_comes_once(run: Run, ranks: int, options: dict[str, Any]) -> None:
    """And no sample is read twice, whatever of them an epoch leaves out."""
    settings = {"shuffle": True, **options}
    order = Order(length=LENGTH, batch_size=GLOBAL, seed=SEED, **settings)
    told = run("train_epochs", ranks, epochs=4, tier="spread", **options)
    for epoch in range(4):
        parts = [one["epochs"][epoch] for one in told]
        assert {part["tier"] for part in parts} == {"spread"}
        steps = [
            list(chain.from_iterable(step)) for step in zip(*(part["batches"] for part in parts), strict=True)
        ]
        expected = truth(epoch, order=order)
        assert [step[: len(whole)] for step, whole in zip(steps, expected, strict=True)] == expected
        assert sum(map(len, steps)) - sum(map(len, expected)) < ranks
    asked = Counter(chain.from_iterable(one["epochs"][3]["asked"] for one in told))
    for one in told:
        asked.subtract(one["epochs"][3]["asked"][:1])  # looked at
    assert max(asked.values()) <= 2  # twice: the padding of the first epoch's last batch
    assert sum(count > 1 for count in asked.values()) < ranks


@pytest.mark.slow
def test_as_many_samples_as_in_a_field_note(run: Run) -> None:
    """600,001 of them over 4 ranks, each in its place in three epochs."""
    order = Order(length=MANY, batch_size=4096, shuffle=True)
    for rank, one in enumerate(run("train_many", 4, epochs=3)):
        assert one["tier"] == "spread"
        for epoch, found in enumerate(one["epochs"]):
            hashed = blake2b()
            for shard in order.shards(epoch, rank=rank, world_size=4):
                hashed.update(shard.samples.tobytes())
            assert found == hashed.hexdigest()


@pytest.mark.slow
def test_weights_draw_samples_more_than_once_and_are_not_spread(run: Run) -> None:
    """A card would have to hold a sample that another has too: the next tier is taken."""
    for one in run("train_epochs", 2, epochs=1, weights=[1.0] * LENGTH):
        assert one["epochs"][0]["tier"] == "source"


@pytest.mark.slow
def test_epochs_that_are_left_early(run: Run) -> None:
    """What was read before is exchanged all the same, and the rest is read when its turn comes."""
    told = run("leave_early", 4)
    for epoch in range(2):
        assert joined([one["left"][epoch] for one in told]) == truth(epoch, stop=3)
    assert joined([one["whole"] for one in told]) == truth(2)
    asked = Counter(chain.from_iterable(one["asked"][1:] for one in told))
    assert sum(count > 1 for count in asked.values()) <= 3 * 2  # padding, of two epochs' last batches
    assert {one["tier"] for one in told} == {"spread"}


@pytest.mark.slow
def test_an_epoch_that_goes_on_after_the_next_was_begun(run: Run) -> None:
    """Its samples are with other ranks by then: it reads them, and they are right."""
    told = run("nest", 4)
    assert joined([one["first"] for one in told]) == truth(1)
    assert joined([one["other"] for one in told]) == truth(2, stop=2)


@pytest.mark.slow
@pytest.mark.parametrize("who", [[2], [0, 1, 2, 3]])
def test_memory_that_is_given_back_ends_it_for_all(run: Run, who: list[int]) -> None:
    """In the middle of an epoch by some ranks; the others keep theirs until the next begins."""
    told = run("shrink", 4, who=who)
    for epoch in range(3):
        assert joined([one["epochs"][epoch] for one in told]) == truth(epoch)
    assert {one["tier"] for one in told} == {"source"}
    for rank, one in enumerate(told):
        assert ("left spread: no memory" in one["why"]) == (rank in who)
        assert ("rank 2 gave its part back" in one["why"]) == (who == [2])


@pytest.mark.slow
def test_memory_that_one_rank_cannot_have(run: Run) -> None:
    """All go a tier lower, and say why."""
    told = run("lack_memory", 2)
    assert joined([one["epochs"][0]["batches"] for one in told]) == truth(0)
    whys = [one["epochs"][0]["why"] for one in told]
    assert "(spread could not be had: another rank has no memory for its part)" in whys[0]
    assert "(spread could not be had: none of it)" in whys[1]


@pytest.mark.slow
def test_data_of_other_fingerprints_are_not_held_together(run: Run) -> None:
    """Copies of one set may have other dates: each rank is by itself then, and nothing fails."""
    for one in run("fail", 2, version=["a", "b"]):
        assert "error" not in one
        assert one["tier"] == "source"
        assert "the ranks' data have different fingerprints" in one["why"]


@pytest.mark.slow
def test_from_memory_once_the_models_need_is_known(run: Run) -> None:
    """Samples are held in memory first, and then taken along: none is read twice."""
    told = run("learn_the_need", 4, version=f"a{os.getpid()}")
    for epoch, tier in enumerate(["ram", "spread", "spread"]):
        parts = [one["epochs"][epoch] for one in told]
        assert {part["tier"] for part in parts} == {tier}
        assert joined([part["batches"] for part in parts]) == truth(epoch)
    for one in told:
        assert one["epochs"][2]["asked"] == one["epochs"][0]["asked"]


def test_the_card_is_too_small_for_all_and_large_enough_for_a_part() -> None:
    """What these tests rest on: a tenth of a card is left to others."""
    assert 0.9 * CARD < LENGTH * ROW < CARD / 0.9
