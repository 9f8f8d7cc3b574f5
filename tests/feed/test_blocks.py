"""The two-level shuffle, against one that holds every number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.feed.blocks import BlockShuffle
from stoker.feed.draws import key
from stoker.feed.permutation import permute

# How long a case takes says how busy the machine is.
untimed = settings(deadline=None)
SHUFFLES = st.builds(
    BlockShuffle,
    length=st.integers(1, 500),
    block_size=st.integers(1, 60),
    group_size=st.integers(1, 8),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)


def written_out(shuffle: BlockShuffle) -> list[int]:
    """The definition: cut into blocks, put them in a row, shuffle each group of the row."""
    numbers = list(range(shuffle.length))
    blocks = [numbers[at : at + shuffle.block_size] for at in range(0, shuffle.length, shuffle.block_size)]
    places = permute(np.arange(len(blocks)), len(blocks), key(shuffle.seed, "blocks", shuffle.epoch))
    row = [blocks[place] for place in places.tolist()]
    mixed: list[int] = []
    for group, at in enumerate(range(0, len(row), shuffle.group_size)):
        pool = [number for block in row[at : at + shuffle.group_size] for number in block]
        own = key(shuffle.seed, "group", shuffle.epoch, group)
        mixed += [pool[place] for place in permute(np.arange(len(pool)), len(pool), own).tolist()]
    return mixed


@untimed
@given(SHUFFLES)
def test_it_is_the_definition_written_out(shuffle: BlockShuffle) -> None:
    """Also where the last block is short, wherever it comes, and where the last group is."""
    assert written_out(shuffle) == shuffle.permute(np.arange(shuffle.length)).tolist()


@untimed
@given(SHUFFLES, st.data())
def test_a_number_does_not_depend_on_what_it_is_asked_with(
    shuffle: BlockShuffle, data: st.DataObject
) -> None:
    """Random access, in any order."""
    positions = data.draw(st.lists(st.integers(0, shuffle.length - 1), max_size=20))
    everything = shuffle.permute(np.arange(shuffle.length))
    chosen = np.array(positions, dtype=np.int64)
    assert everything[chosen].tolist() == shuffle.permute(chosen).tolist()


@untimed
@given(SHUFFLES, st.data())
def test_the_blocks_told_are_those_needed(shuffle: BlockShuffle, data: st.DataObject) -> None:
    """Whoever holds the blocks of an interval has every sample of it; over an epoch each comes once."""
    start = data.draw(st.integers(0, shuffle.length))
    stop = data.draw(st.integers(start, shuffle.length))
    held = shuffle.blocks(start, stop).tolist()
    needed = shuffle.permute(np.arange(start, stop)) // shuffle.block_size
    assert set(needed.tolist()) <= set(held)
    assert len(held) == len(set(held))
    assert sorted(shuffle.blocks(0, shuffle.length).tolist()) == list(range(shuffle.count))


@untimed
@given(SHUFFLES, st.data())
def test_few_blocks_are_held_at_once(shuffle: BlockShuffle, data: st.DataObject) -> None:
    """For one position, one group; so no more than group_size blocks."""
    position = data.draw(st.integers(0, shuffle.length - 1))
    assert len(shuffle.blocks(position, position + 1)) <= shuffle.group_size


def test_a_billion_samples_cost_what_a_batch_costs() -> None:
    """Nothing grows with the length; a number far inside comes from a block of its group."""
    shuffle = BlockShuffle(length=10**9 + 7, block_size=1000, group_size=16, seed=1, epoch=2)
    positions = np.arange(654_321_000, 654_321_256)
    numbers = shuffle.permute(positions)
    held = shuffle.blocks(654_321_000, 654_321_256)
    assert len(set(numbers.tolist())) == 256
    assert set((numbers // 1000).tolist()) <= set(held.tolist())


@pytest.mark.parametrize("epoch", range(3))
def test_the_last_samples_come_anywhere_in_the_epoch(epoch: int) -> None:
    """The short block is not kept for the end: over seeds it comes early, in the middle and late."""
    thirds = set()
    for seed in range(20):
        shuffle = BlockShuffle(length=1005, block_size=10, group_size=2, seed=seed, epoch=epoch)
        thirds.add(shuffle.permute(np.arange(1005)).tolist().index(1004) // 335)
    assert thirds == {0, 1, 2}
