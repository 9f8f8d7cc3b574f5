"""An order that the device works out by itself has the host's numbers."""

import numpy as np
import pytest
import torch

from stoker.feed.device_order import worked_out_on
from stoker.feed.order import Order

CUDA = torch.device("cuda:0")


def test_the_host_works_out_what_the_device_cannot() -> None:
    """On a CPU there is no kernel, and the shards are as before."""
    shards = list(Order(length=100, batch_size=10, shuffle=True).shards(0))
    assert worked_out_on(torch.device("cpu"), shards) is None
    assert sorted(np.concatenate([shard.samples for shard in shards])) == list(range(100))


def test_a_shard_says_its_length_before_it_is_worked_out() -> None:
    """And its samples, once asked for, are those of the batch."""
    order = Order(length=103, batch_size=10, shuffle=True, seed=3)
    for step, shard in enumerate(order.shards(1)):
        assert len(shard) == min(10, 103 - 10 * step)
        assert (shard.samples == order.batch(1, step)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("length", [40, 1_000, 40_960, 100_003, 6_000_000_001])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 4)])
def test_the_device_comes_to_the_same_numbers(length: int, rank: int, world_size: int) -> None:
    """For few samples and many, any epoch, any rank, from any step and offset on."""
    order = Order(length=length, batch_size=16, shuffle=True, seed=5)
    for epoch, start, offset in ((0, 0, 0), (3, 1, 7)):
        stop = min(start + 300, (length - offset) // 16)
        shards = list(order.shards(epoch, start, stop, rank=rank, world_size=world_size, offset=offset))
        found = worked_out_on(CUDA, shards)
        assert found is not None
        assert found.tolist() == np.concatenate([shard.samples for shard in shards]).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{"subset": range(50)}, {"limit": 50}, {"weights": np.ones(100)}, {"shuffle": False}]
)
def test_what_more_than_the_shuffle_makes_is_left_to_the_host(options: dict[str, object]) -> None:
    """A subset, a limit, weights; and samples as they stand."""
    shards = list(Order(**{"length": 100, "batch_size": 10, "shuffle": True, **options}).shards(0))  # type: ignore[arg-type]
    assert worked_out_on(CUDA, shards) is None
