"""Who sends which samples to whom before an epoch: planned by every rank for itself, and all plans fit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.feed.exchange import Plan, plan_exchange, read_by, rows_of, share_of
from stoker.feed.order import Order
from stoker.feed.place import Place
from stoker.feed.sources.base import Indices

Holdings = list[Indices]


def carry_out(plans: list[Plan], held: Holdings, at_once: int) -> tuple[Holdings, int]:
    """What each rank holds afterwards, and the most that one held at a time; every plan fits the others."""
    ranks = range(len(plans))
    has = [set(some.tolist()) - set(plan.dropped.tolist()) for some, plan in zip(held, plans, strict=True)]
    most = max(map(len, has))
    for parts in zip(*(plan.rounds() for plan in plans), strict=True):
        for one in ranks:
            for other in ranks:
                assert parts[one].sent[other].tolist() == parts[other].received[one].tolist()
            sent, received = (
                np.concatenate(side).tolist() for side in (parts[one].sent, parts[one].received)
            )
            assert max(len(sent), len(received)) <= at_once + len(plans)
            assert set(sent) <= has[one], "what it sends it has"
        for one in ranks:
            has[one] -= set(parts[one].gone.tolist())
            has[one] |= {sample for some in parts[one].received for sample in some.tolist()}
            most = max(most, len(has[one]))
    after = [one - set(plan.lent.tolist()) for one, plan in zip(has, plans, strict=True)]
    return [np.array(sorted(one), np.int64) for one in after], most


def exchanged(needs: Holdings, held: Holdings, samples: int, at_once: int) -> tuple[Holdings, int]:
    """The same with plans made here."""
    plans = [
        plan_exchange(needs, held, samples=samples, rank=rank, at_once=at_once) for rank in range(len(needs))
    ]
    return carry_out(plans, held, at_once)


@settings(max_examples=60)
@given(
    ranks=st.integers(1, 6),
    samples=st.integers(1, 90),
    each=st.integers(1, 5),
    at_once=st.integers(1, 40),
    drop_last=st.booleans(),
    shuffle=st.sampled_from(["full", "blocks", False]),
    places=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=4),
)
def test_each_rank_has_what_it_reads_and_no_sample_is_lost(
    ranks: int,
    samples: int,
    each: int,
    at_once: int,
    drop_last: bool,
    shuffle: bool | str,
    places: list[tuple[int, int, float]],
) -> None:
    """Whatever epochs follow each other, begun anywhere and left anywhere; in little more than a share."""
    batch = ranks * each
    order = Order(
        length=samples, batch_size=batch, shuffle=shuffle, drop_last=drop_last and batch <= samples,
        block_size=4, group_size=2,
    )  # fmt: skip
    held: Holdings = [np.empty(0, np.int64) for _ in range(ranks)]
    for epoch, step, read in places:
        place = Place(epoch=epoch, step=min(step, order.steps))
        needs = read_by(order, place, ranks)
        before = set(np.concatenate(held).tolist())
        held, most = exchanged(needs, held, samples, at_once)
        assert most <= rows_of(samples, ranks)
        assert before == set(np.concatenate(held).tolist())
        for wanted, here in zip(needs, held, strict=True):
            assert np.isin(wanted, here).sum() == np.isin(wanted, list(before)).sum()
        # The epoch reads what nobody had, and may end before its end.
        held = [
            np.union1d(here, wanted[: round(len(wanted) * read)])
            for here, wanted in zip(held, needs, strict=True)
        ]
        assert max(map(len, held)) <= share_of(samples, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_full_shuffle_crosses_ranks(ranks: int) -> None:
    """From one epoch to the next a rank keeps the nth part of what it had, and gets as much from each."""
    samples = 8000
    order = Order(length=samples, batch_size=80, shuffle=True, seed=5)
    epochs = [read_by(order, Place(epoch=epoch), ranks) for epoch in range(3)]
    for held, needs in pairwise(epochs):
        plan = plan_exchange(needs, held, samples=samples, rank=1, at_once=100)
        kept = np.isin(held[1], needs[1]).sum()
        moved = [len(some) for some in plan.received]
        assert sum(moved) + kept == samples // ranks
        expected = samples / ranks**2
        spread = 5 * expected**0.5  # five deviations of a count like this, one in two million
        assert abs(kept - expected) < spread
        assert moved[1] == 0
        assert all(abs(count - expected) < spread for rank, count in enumerate(moved) if rank != 1)
        after, most = exchanged(needs, held, samples, at_once=100)
        assert [some.tolist() for some in after] == [some.tolist() for some in needs]
        assert most <= rows_of(samples, ranks)


def test_in_the_same_order_nothing_moves() -> None:
    """Unshuffled, each rank reads in every epoch what it has."""
    order = Order(length=50, batch_size=8)
    needs = read_by(order, Place(), 4)
    plan = plan_exchange(needs, needs, samples=50, rank=2, at_once=3)
    assert (plan.count, len(plan.dropped), len(plan.lent)) == (0, 0, 0)


def test_what_several_ranks_read_goes_to_each_of_them() -> None:
    """The padding of a short last batch; its owner, who does not read it, lets go of it at the end."""
    needs = [np.array([0, 1]), np.array([2, 3]), np.array([2, 4])]
    held = [np.array([2, 3]), np.array([0, 4]), np.array([1])]
    after, _ = exchanged(needs, held, samples=5, at_once=1)
    assert [some.tolist() for some in after] == [some.tolist() for some in needs]
