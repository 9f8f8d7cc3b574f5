"""A source that has new samples for each epoch: each comes once, in its own epoch, on every tier."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feed.volumes import PATCH, make_labels, make_values
from stoker.errors import OrderChanged, UsageError
from stoker.feed import Feed
from stoker.feed.order import Order
from stoker.feed.place import Place
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.volume import VolumeSource


class Numbers(Source):
    """Sample n is n; what is read is counted."""

    def __init__(self, count: int) -> None:
        self.count, self.read_numbers = count, list[int]()

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Indices) -> torch.Tensor:
        self.read_numbers += indices.tolist()
        return torch.from_numpy(np.array(indices))

    def fingerprint(self) -> str:
        return f"numbers {self.count}"


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from([False, True, "blocks"]),
    st.data(),
)
def test_each_epoch_has_its_own_samples_each_once(
    per_epoch: int, parts: int, batch_size: int, shuffle: bool | str, data: st.DataObject
) -> None:
    """The first ones again behind the last; one by one, at one go and from the middle they are the same."""
    order = Order(
        length=per_epoch * parts, batch_size=batch_size, shuffle=shuffle, per_epoch=per_epoch, block_size=4
    )
    assert order.numbers() is None
    for epoch in range(parts + 1):
        batches = [order.batch(epoch, step) for step in range(order.steps)]
        first = epoch % parts * per_epoch
        assert sorted(np.concatenate(batches).tolist()) == list(range(first, first + per_epoch))
        begun = data.draw(st.integers(0, order.steps))
        shards = [shard.samples.tolist() for shard in order.shards(epoch, begun)]
        assert shards == [batch.tolist() for batch in batches[begun:]]
        if shuffle != True:  # noqa: E712 - "blocks" is no less true
            blocks = [order.block(number, epoch) for number in order.blocks(epoch, 0, order.steps).tolist()]
            assert sorted(np.concatenate(blocks).tolist()) == list(range(first, first + per_epoch))


@pytest.mark.parametrize("tier", ["source", "ram"])
def test_what_is_kept_is_never_handed_out_for_another(tier: str) -> None:
    """Five epochs of a source of three: held or not, each batch has the samples of its own epoch."""
    source = Numbers(30)
    feed = Feed(source, 4, shuffle=True, per_epoch=10, tier=tier, device="cpu", seed=2)
    assert (len(feed), feed.tier) == (3, tier)
    order = Order(length=30, batch_size=4, shuffle=True, per_epoch=10, seed=2)
    for epoch in range(5):
        found = [batch.tolist() for batch in feed]
        assert found == [order.batch(epoch, step).tolist() for step in range(3)]
    if tier == "ram":
        assert sorted(set(source.read_numbers)) == list(range(30))
    feed.close()


def test_a_state_of_another_part_is_refused() -> None:
    """Samples would come twice, or not at all."""
    order = Order(length=30, batch_size=5, per_epoch=10)
    state = order.state(Place(epoch=1, step=1), "f")
    with pytest.raises(OrderChanged, match="per_epoch"):
        Order(length=30, batch_size=5, per_epoch=15).resume(state, "f")
    assert order.resume(state, "f") == Place(epoch=1, step=1)


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"per_epoch": 7}, "per_epoch=7 of 30 samples: give a number that they divide by"),
        ({"per_epoch": 60}, "per_epoch=60 of 30 samples"),
        ({"per_epoch": 0}, "per_epoch=0: it must be 1 or more"),
        ({"per_epoch": 10, "limit": 5}, "per_epoch=10 with a subset, a limit or weights"),
    ],
)
def test_a_part_that_cannot_be_is_told(given_: dict[str, Any], told: str) -> None:
    """With what to give instead."""
    with pytest.raises(UsageError, match=told):
        Order(length=30, batch_size=5, **given_)


def test_a_volume_has_patches_for_each_epoch() -> None:
    """The first epoch's are those that it had alone; another number of epochs is another source."""
    labelled: dict[str, Any] = {"labels": make_labels(), "patch": PATCH, "samples_per_epoch": 6, "seed": 3}
    one, many = (VolumeSource(make_values(), epochs=epochs, **labelled) for epochs in (1, 4))
    assert (len(one), len(many)) == (6, 24)
    corners = many.corners(np.arange(24)).reshape(4, 6, 3)
    assert np.array_equal(corners[0], one.corners(np.arange(6)))
    assert not any(np.array_equal(corners[0], later) for later in corners[1:])
    assert one.fingerprint() != many.fingerprint()
    with pytest.raises(UsageError, match="epochs is 0: give a number of epochs, 1 or more"):
        VolumeSource(make_values(), epochs=0, **labelled)
    with pytest.raises(UsageError, match="epochs is for random patches"):
        VolumeSource(make_values(), patch=PATCH, mode="grid", epochs=2)
