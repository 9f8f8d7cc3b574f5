"""The order: the same global batches for all, every sample exactly once."""

import json
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feed.chances import deviation
from stoker.errors import UsageError
from stoker.feed.order import Order
from stoker.feed.place import Place, State

# How long a case takes says how busy the machine is.
untimed = settings(deadline=None)
SHUFFLES = st.sampled_from([False, True, "full", "blocks"])
GOLDEN: list[tuple[dict[str, Any], list[int]]] = [
    ({"shuffle": False}, [440, 441, 442, 443, 444, 445, 446, 447]),
    ({"shuffle": "full"}, [357050, 230171, 368375, 473161, 609659, 115064, 434231, 472861]),
    ({"shuffle": "blocks"}, [647720, 518069, 648131, 78156, 78463, 565191, 139441, 18936]),
    (
        {"shuffle": "full", "limit": 1000},
        [276906, 646883, 135180, 609045, 163669, 293955, 644839, 176128],
    ),
    (
        {"shuffle": "blocks", "limit": 1000, "block_size": 100, "group_size": 2},
        [370814, 405815, 408948, 365139, 385318, 273266, 248168, 243399],
    ),
    (
        {"weights": np.arange(696_278)},
        [533199, 328847, 654757, 295751, 517967, 679006, 524581, 594900],
    ),
]


@st.composite
def settings_of_orders(draw: st.DrawFn) -> dict[str, Any]:
    """What an order without weights is made of."""
    length = draw(st.integers(1, 150))
    subset = draw(st.none() | st.lists(st.integers(0, length - 1), min_size=1, max_size=60, unique=True))
    return {
        "length": length,
        "seed": draw(st.integers(-3, 3)),
        "shuffle": draw(SHUFFLES),
        "block_size": draw(st.integers(1, 30)),
        "group_size": draw(st.integers(1, 4)),
        "subset": subset,
        "limit": draw(st.none() | st.integers(1, 200)),
    }


def samples_of_epoch(order: Order, epoch: int) -> list[int]:
    return [number for step in range(order.steps) for number in order.batch(epoch, step).tolist()]


def hand_out(order: Order, place: Place, steps: int, world_size: int) -> tuple[list[int], Place]:
    """What all ranks train on in so many steps, without the declared repeats, and the place after them."""
    stop = min(place.step + steps, order.count_steps(place.offset))
    ranks = [
        order.shards(place.epoch, place.step, stop, rank=rank, world_size=world_size, offset=place.offset)
        for rank in range(world_size)
    ]
    samples: list[int] = []
    for parts in zip(*ranks, strict=True):
        assert len({len(part.samples) for part in parts}) == 1
        assert sum(part.repeats for part in parts) < world_size
        samples += [number for part in parts for number in part.own.tolist()]
    return samples, Place(epoch=place.epoch, step=stop, offset=place.offset)


@untimed
@given(settings_of_orders(), st.integers(1, 40), st.integers(0, 3))
def test_every_sample_comes_exactly_once_an_epoch(
    given_: dict[str, Any], batch_size: int, epoch: int
) -> None:
    """Of those taken; in batches that are full but for the last."""
    order = Order(batch_size=batch_size, **given_)
    samples = samples_of_epoch(order, epoch)
    pool = range(order.length) if given_["subset"] is None else given_["subset"]
    assert len(samples) == len(set(samples)) == order.size == min(len(pool), given_["limit"] or len(pool))
    assert set(samples) <= set(pool)
    assert all(len(order.batch(epoch, step)) == batch_size for step in range(order.steps - 1))


@untimed
@given(settings_of_orders(), st.integers(1, 12), st.integers(1, 6), st.data())
def test_the_global_batches_are_the_same_for_every_world_size(
    given_: dict[str, Any], each: int, world_size: int, data: st.DataObject
) -> None:
    """All ranks' shards in a row are the global batch; only a short last one is padded, and with itself."""
    order = Order(batch_size=each * world_size, **given_)
    step = data.draw(st.integers(0, order.steps - 1))
    batch = order.batch(1, step).tolist()
    shards = [order.shard(1, step, rank, world_size) for rank in range(world_size)]
    joined = [number for shard in shards for number in shard.samples.tolist()]
    assert batch == joined[: len(batch)]
    assert batch == [number for shard in shards for number in shard.own.tolist()]
    assert set(joined) == set(batch)
    assert len({len(shard.samples) for shard in shards}) == 1
    assert sum(shard.repeats for shard in shards) == len(joined) - len(batch) < world_size


@untimed
@given(settings_of_orders(), st.integers(1, 12), st.integers(1, 6))
def test_without_padding_nothing_comes_again(given_: dict[str, Any], each: int, world_size: int) -> None:
    """For validation: ranks differ by one sample at most, and the shards are the epoch."""
    order = Order(batch_size=each * world_size, **given_)
    for step in range(order.steps):
        shards = [order.shard(0, step, rank, world_size, padding=False) for rank in range(world_size)]
        assert np.concatenate([shard.samples for shard in shards]).tolist() == order.batch(0, step).tolist()
        sizes = [len(shard.samples) for shard in shards]
        assert max(sizes) - min(sizes) <= 1
        assert not any(shard.repeats for shard in shards)


@untimed
@given(settings_of_orders(), st.data())
def test_exactly_once_whatever_the_resumes_and_world_sizes(
    given_: dict[str, Any], data: st.DataObject
) -> None:
    """Stopped at any step, state through JSON, gone on with another world size and another global batch,
    again and again: the samples come once each, as in an epoch that never stopped."""
    batch_sizes = st.sampled_from([1, 2, 3, 4, 6, 7, 12, 18, 24])
    order = Order(batch_size=data.draw(batch_sizes), **given_)
    uninterrupted = samples_of_epoch(order, 2)
    place = Place(epoch=2)
    samples: list[int] = []
    while place.step < order.count_steps(place.offset):
        divisors = [size for size in range(1, 7) if order.batch_size % size == 0]
        some, place = hand_out(
            order, place, data.draw(st.integers(1, 8)), data.draw(st.sampled_from(divisors))
        )
        samples += some
        state = State.from_json(json.loads(json.dumps(order.state(place, "print").to_json())))
        assert state.samples == len(samples)
        order = Order(batch_size=data.draw(batch_sizes), **given_)
        place = order.resume(state, "print")
    assert uninterrupted == samples


@untimed
@given(settings_of_orders(), st.integers(1, 20), st.data())
def test_a_resume_goes_on_at_the_very_next_step(
    given_: dict[str, Any], batch_size: int, data: st.DataObject
) -> None:
    """A state taken in step k leads to step k + 1 of the same epoch, with nothing replayed."""
    order = Order(batch_size=batch_size, **given_)
    step = data.draw(st.integers(0, order.steps - 1))
    state = order.state(Place(epoch=5, step=step + 1), "print")
    again = Order(batch_size=batch_size, **given_).resume(state, "print")
    if step + 1 < order.steps:
        assert again == Place(epoch=5, step=step + 1)
    else:
        assert again.step == order.count_steps(again.offset)


@untimed
@given(settings_of_orders(), st.integers(1, 20), st.integers(1, 4), st.data())
def test_many_steps_at_one_go_are_the_steps_one_by_one(
    given_: dict[str, Any], each: int, world_size: int, data: st.DataObject
) -> None:
    """`shards` from any step to any other gives what `shard` gives."""
    order = Order(batch_size=each * world_size, **given_)
    start = data.draw(st.integers(0, order.steps))
    stop = data.draw(st.integers(start, order.steps))
    rank = data.draw(st.integers(0, world_size - 1))
    many = list(order.shards(0, start, stop, rank=rank, world_size=world_size))
    ones = [order.shard(0, step, rank, world_size) for step in range(start, stop)]
    assert [(shard.samples.tolist(), shard.repeats) for shard in many] == [
        (shard.samples.tolist(), shard.repeats) for shard in ones
    ]


def test_steps_beyond_one_go_follow_on() -> None:
    """Where thousands of steps are computed in several goes, none is missed at the seams."""
    order = Order(length=100_003, batch_size=24, shuffle=True)
    samples = np.concatenate([shard.samples for shard in order.shards(0, rank=0, world_size=1)])
    assert (np.bincount(samples, minlength=100_003) == 1).all()
    assert samples[24 * 700 : 24 * 701].tolist() == order.batch(0, 700).tolist()


@untimed
@given(settings_of_orders(), st.integers(1, 40))
def test_drop_last_leaves_out_the_short_batch_and_nothing_else(
    given_: dict[str, Any], batch_size: int
) -> None:
    """The other batches are those without it."""
    kept = Order(batch_size=batch_size, **given_)
    if batch_size > kept.size:
        with pytest.raises(UsageError, match="drop_last leaves nothing"):
            Order(batch_size=batch_size, drop_last=True, **given_)
        return
    dropped = Order(batch_size=batch_size, drop_last=True, **given_)
    assert dropped.steps == kept.size // batch_size
    for step in range(dropped.steps):
        assert dropped.batch(0, step).tolist() == kept.batch(0, step).tolist()


@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_epochs_and_seeds_differ(shuffle: str) -> None:
    """And the same ones are the same."""
    orders = {
        seed: Order(length=500, batch_size=500, seed=seed, shuffle=shuffle, block_size=8) for seed in (0, 1)
    }
    batches = {(seed, epoch): orders[seed].batch(epoch, 0).tolist() for seed in orders for epoch in range(5)}
    assert len({tuple(batch) for batch in batches.values()}) == 10
    again = Order(length=500, batch_size=500, seed=1, shuffle=shuffle, block_size=8)
    assert batches[1, 3] == again.batch(3, 0).tolist()


def test_unshuffled_is_ascending_in_every_epoch() -> None:
    """Or as the subset has it."""
    assert Order(length=7, batch_size=3).batch(0, 1).tolist() == [3, 4, 5]
    assert Order(length=7, batch_size=3).batch(9, 2).tolist() == [6]
    assert Order(length=7, batch_size=3, subset=[6, 0, 4]).batch(0, 0).tolist() == [6, 0, 4]


@pytest.mark.parametrize(("given_", "expected"), GOLDEN)
def test_golden_batches(given_: dict[str, Any], expected: list[int]) -> None:
    """Step 55 of epoch 3 of the field notes' 696,278 samples never changes within a version."""
    order = Order(length=696_278, batch_size=8, seed=42, **given_)
    assert expected == order.batch(3, 55).tolist()


@pytest.mark.parametrize("shuffle", [False, "full", "blocks"])
@pytest.mark.parametrize("length", [10**9, 2**40])
def test_a_set_that_no_memory_holds(length: int, shuffle: bool | str) -> None:
    """The last step of a late epoch is there at once, and 1,000 batches have no sample twice."""
    order = Order(length=length, batch_size=300, shuffle=shuffle)
    assert order.steps == -(-length // 300)
    assert len(order.batch(1000, order.steps - 1)) == length % 300
    middle = order.steps // 2
    samples = np.concatenate([shard.samples for shard in order.shards(7, middle, middle + 1000)])
    assert len(np.unique(samples)) == 300_000
    assert samples.min() >= 0
    assert samples.max() < length
    assert order.resume(order.state(Place(epoch=7, step=middle), "print"), "print").step == middle


@untimed
@given(settings_of_orders(), st.integers(1, 20), st.data())
def test_the_blocks_told_ahead_hold_the_steps_samples(
    given_: dict[str, Any], batch_size: int, data: st.DataObject
) -> None:
    """Whoever has fetched them can make the batches of these steps."""
    given_["shuffle"] = data.draw(st.sampled_from([False, "blocks"]))
    order = Order(batch_size=batch_size, **given_)
    start = data.draw(st.integers(0, order.steps))
    stop = data.draw(st.integers(start, order.steps))
    held = [
        number for block in order.blocks(1, start, stop).tolist() for number in order.block(block).tolist()
    ]
    needed = [number for step in range(start, stop) for number in order.batch(1, step).tolist()]
    assert set(needed) <= set(held)
    assert len(held) == len(set(held))


@untimed
@given(settings_of_orders(), st.integers(1, 200))
def test_a_limit_takes_the_same_samples_in_every_epoch(given_: dict[str, Any], limit: int) -> None:
    """However they are shuffled; a smaller limit takes a part of them, another seed others."""
    given_["limit"] = limit
    order = Order(batch_size=16, **given_)
    taken = set(samples_of_epoch(order, 0))
    assert taken == set(samples_of_epoch(order, 1))
    for shuffle in (False, "full", "blocks"):
        assert taken == set(samples_of_epoch(Order(batch_size=7, **given_ | {"shuffle": shuffle}), 3))
    fewer = Order(batch_size=16, **given_ | {"limit": max(1, limit // 2)})
    assert set(samples_of_epoch(fewer, 0)) <= taken


def test_a_limit_is_a_fair_choice_and_depends_on_the_seed() -> None:
    """Spread over the set, in the set's order when unshuffled."""
    taken = {seed: Order(length=10**6, batch_size=5000, limit=5000, seed=seed).batch(0, 0) for seed in (0, 1)}
    assert (np.diff(taken[0]) > 0).all()
    assert deviation(np.bincount(taken[0] * 50 // 10**6, minlength=50)) < 4
    assert len(np.intersect1d(taken[0], taken[1])) < 60


def test_a_subset_may_name_a_sample_twice() -> None:
    """Then it comes as often as it stands there."""
    order = Order(length=9, batch_size=4, shuffle=True, subset=[5, 5, 2])
    assert Counter(samples_of_epoch(order, 0)) == {5: 2, 2: 1}


def test_a_subset_is_the_orders_own() -> None:
    """Writing to the array afterwards changes nothing."""
    subset = np.array([1, 2, 3])
    order = Order(length=9, batch_size=3, subset=subset)
    subset[:] = 0
    assert order.batch(0, 0).tolist() == [1, 2, 3]


def test_weights_are_the_frequencies() -> None:
    """With replacement, by weight; what weighs nothing never comes; epochs draw anew."""
    weights = np.array([0, 1, 2, 0, 4, 1, 0])
    order = Order(length=7, batch_size=7, weights=weights, seed=3)
    drawn = [order.batch(epoch, 0) for epoch in range(2000)]
    counts = np.bincount(np.concatenate(drawn), minlength=7)
    assert counts[weights == 0].tolist() == [0, 0, 0]
    some = weights > 0
    assert deviation(counts[some], weights[some] / 8 * 14_000) < 4
    assert len({tuple(batch.tolist()) for batch in drawn}) > 1000


def test_weights_within_a_subset() -> None:
    """They are numbered like the source; only the subset's count."""
    weights = np.array([100, 0, 1, 1, 100])
    order = Order(length=5, batch_size=3, weights=weights, subset=[1, 2, 3])
    assert {number for epoch in range(50) for number in order.batch(epoch, 0).tolist()} == {2, 3}


@untimed
@given(st.integers(1, 60), st.integers(1, 5), st.data())
def test_weighted_draws_do_not_depend_on_resume_or_world_size(
    length: int, world_size: int, data: st.DataObject
) -> None:
    """They belong to the position in the epoch."""
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=length, max_size=length))
    order = Order(length=length, batch_size=world_size * 3, weights=weights)
    place = Place(epoch=1)
    samples: list[int] = []
    while place.step < order.steps:
        some, place = hand_out(order, place, 2, world_size)
        samples += some
    assert samples_of_epoch(order, 1) == samples


def test_an_order_goes_to_another_process_as_it_is() -> None:
    """Pickled, also after use."""
    order = Order(length=1000, batch_size=10, shuffle="blocks", block_size=7, limit=500)
    expected = samples_of_epoch(order, 1)
    assert expected == samples_of_epoch(pickle.loads(pickle.dumps(order)), 1)


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"length": 0}, "length=0: it must be 1 or more"),
        ({"length": 2**63}, "length=9223372036854775808: it must be 4611686018427387904 or less"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5: give a whole number"),
        ({"seed": "x"}, "seed='x': give a whole number"),
        ({"shuffle": "ful"}, 'shuffle=\'ful\': take False, True, "full" or "blocks"'),
        ({"block_size": 0}, "block_size=0"),
        ({"group_size": -1}, "group_size=-1"),
        ({"limit": 0}, "limit=0"),
        ({"subset": []}, r"a subset of shape \(0,\)"),
        ({"subset": [3, 10]}, "the subset names sample 10: there are 10, from 0 to 9"),
        ({"subset": [[1], [2, 3]]}, "a subset that is no array"),
        ({"subset": [-1]}, "the subset names sample -1"),
        ({"subset": [0.5]}, "type float64: give a flat array of sample numbers"),
        ({"subset": np.ones(10, dtype=bool)}, r"is a mask: give the sample numbers, np.flatnonzero\(mask\)"),
        ({"weights": [1.0]}, r"weights of shape \(1,\): give one for each of the 10 samples"),
        ({"weights": [1.0] * 9 + [-1]}, "the weight of sample 9 is -1.0: take 0 or more, finite"),
        ({"weights": [float("nan")] * 10}, "the weight of sample 0 is nan"),
        ({"weights": ["a"] * 10}, "weights that are no numbers"),
        ({"weights": [0] * 10}, "the weights of the samples taken sum to 0.0"),
        ({"weights": [1e308] * 10}, "the weights of the samples taken sum to inf"),
        ({"weights": [1] * 10, "shuffle": "blocks"}, 'leave out shuffle="blocks"'),
        ({"drop_last": True, "batch_size": 11}, "nothing of 10 samples in batches of 11: take batch_size 10"),
    ],
)
def test_an_order_that_cannot_be_is_told(given_: dict[str, Any], told: str) -> None:
    """With the value, and what could be."""
    with pytest.raises(UsageError, match=told):
        Order(**{"length": 10, "batch_size": 2} | given_)


def test_a_batch_that_does_not_divide_is_told() -> None:
    """With the batch sizes and world sizes that do."""
    order = Order(length=1000, batch_size=100)
    told = "100 does not divide among 8 ranks: take a batch_size of 96 or 104, or 1, 2, 4, 5 ranks"
    with pytest.raises(UsageError, match=told):
        order.shard(0, 0, 0, 8)
    with pytest.raises(UsageError, match="take a batch_size of 3, or 1, 2 ranks"):
        Order(length=10, batch_size=2).shards(0, rank=0, world_size=3)


def test_what_is_not_there_is_told() -> None:
    """Steps, ranks, epochs, blocks."""
    order = Order(length=10, batch_size=4)
    for ask, told in (
        (lambda: order.batch(0, 3), "no step 3: the epoch has 3, from 0 to 2"),
        (lambda: order.batch(0, -1), "no step -1"),
        (lambda: order.batch(-1, 0), "epoch -1: epochs are counted from 0"),
        (lambda: order.batch(0, 0, offset=4), "offset 4: it is below the batch size of 4"),
        (lambda: order.shard(0, 0, 2, 2), "rank 2 of 2"),
        (lambda: order.shards(0, 2, 4), r"steps 2 to 4 \(exclusive\): the epoch has 3"),
        (lambda: order.block(1), "no block 1: there are 1"),
        (lambda: order.state(Place(step=4), ""), "step 4 comes next: the epoch has 3"),
        (lambda: Order(length=10, batch_size=4, shuffle=True).blocks(0, 0, 1), "any step may need any block"),
    ):
        with pytest.raises(UsageError, match=told):
            ask()
