"""Several ranks on one GPU: each in a process of its own, the samples once a node, the one rank's batches."""

import multiprocessing
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from feed.numbered import Numbered
from stoker import Feed
from stoker.feed.choice import Room
from stoker.feed.holding import Holding
from stoker.feed.tiers import ram

pytestmark = pytest.mark.gpu
LENGTH, NUMBERS, GLOBAL, EPOCHS = 192, 20_000, 16, 3
BYTES = LENGTH * (4 * NUMBERS + 8)


def hand_out(rank: int, world_size: int, tier: str, together: Any, folder: Path) -> None:
    """A rank: all its batches, and which files of samples were in the node's memory."""
    feed = Feed(
        Numbered(LENGTH, numbers=NUMBERS), global_batch_size=GLOBAL, shuffle=True, seed=3, device="cuda",
        tier=tier, rank=rank, world_size=world_size,
    )  # fmt: skip
    # Of the card, a window has room for a third of the samples.
    room = Room(vram=int(BYTES / 3 / 0.9) if tier == "window" else 1 << 30, ram=1 << 33, shm=1 << 33)
    with patch.object(Holding, "_room", lambda self: room), closing(feed):
        batches = []
        for _ in range(EPOCHS):
            batches += [{name: tensor.cpu() for name, tensor in batch.items()} for batch in feed]
        together.wait(60)  # nobody leaves before all have looked
        files = sorted(path.name for path in ram.FOLDER.glob("stoker-ram-*"))
        together.wait(60)
        torch.save({"batches": batches, "tier": feed.tier, "files": files}, folder / f"{rank}.pt")


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("tier", ["vram", "window", "ram"])
def test_ranks_on_one_card_share_the_samples_and_the_batches(
    tier: str, world_size: int, tmp_path: Path
) -> None:
    """What all ranks get in a step is the one rank's batch; in memory the samples lie once."""
    before = {path.name for path in ram.FOLDER.glob("stoker-ram-*")}
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(world_size)
    ranks = [
        spawn.Process(target=hand_out, args=(rank, world_size, tier, together, tmp_path), daemon=True)
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(100)
    assert [process.exitcode for process in ranks] == [0] * world_size
    told = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world_size)]
    assert [one["tier"] for one in told] == [tier] * world_size
    new = {name for one in told for name in one["files"]} - before
    assert len(new) == (0 if tier == "vram" else 1)
    assert not any((ram.FOLDER / name).exists() for name in new)
    source = Numbered(LENGTH, numbers=NUMBERS)
    alone = Feed(source, batch_size=GLOBAL, shuffle=True, seed=3, device="cpu", tier="source")
    with closing(alone):
        expected = [batch for _ in range(EPOCHS) for batch in alone]
    assert [len(one["batches"]) for one in told] == [len(expected)] * world_size
    for step, batch in enumerate(expected):
        for name, tensor in batch.items():
            assert torch.equal(torch.cat([one["batches"][step][name] for one in told]), tensor)
