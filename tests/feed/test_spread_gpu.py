"""Samples spread over ranks on GPUs: over gloo where ranks share a card, over NCCL where each has its own.

NCCL refuses two ranks on one card. Over gloo the exchange goes through the host's memory.
"""

import multiprocessing
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from feed.numbered import Numbered
from stoker import Feed
from stoker.feed.choice import Room
from stoker.feed.exchange import rows_of
from stoker.feed.holding import Holding
from stoker.feed.tiers import spread
from stoker.feed.tiers.spread import SpreadRows

pytestmark = pytest.mark.gpu
LENGTH, NUMBERS, GLOBAL, EPOCHS = 1003, 20_000, 16, 4
ROW = 4 * NUMBERS + 8
CARDS = torch.cuda.device_count()


def hand_out(rank: int, world_size: int, backend: str, folder: Path) -> None:
    """A rank: all its batches, and what it takes of its card."""
    device = torch.device("cuda", rank % CARDS)
    torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    feed = Feed(
        Numbered(LENGTH, numbers=NUMBERS), global_batch_size=GLOBAL, shuffle=True, seed=3, device=device,
        reserve=0,
    )  # fmt: skip
    spread._ROUND_BYTES = 50 * ROW
    room = Room(vram=LENGTH * ROW, ram=1 << 33, shm=1 << 33)
    with patch.object(Holding, "_room", lambda self: room), closing(feed):
        batches = []
        for _ in range(EPOCHS):
            batches += [{name: tensor.cpu() for name, tensor in batch.items()} for batch in feed]
        rows = feed._hold()._rows
        assert isinstance(rows, SpreadRows), feed.why
        told = {"batches": batches, "tier": feed.tier, "rows": rows.rows, "device": str(rows.device)}
        torch.save({**told, "taken": torch.cuda.memory_allocated(device)}, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backend", "world_size"),
    [
        ("gloo", 2),
        ("gloo", 4),
        pytest.param(
            "cpu:gloo,cuda:nccl",
            max(2, CARDS),
            marks=pytest.mark.skipif(CARDS < 2, reason="NCCL wants a card for each rank"),
        ),
    ],
)
def test_ranks_hold_a_part_each_and_get_the_one_ranks_batches(
    backend: str, world_size: int, tmp_path: Path
) -> None:
    """On the device, batch by batch; and of each card little more than the nth part is taken."""
    if GLOBAL % world_size:
        pytest.skip(f"a global batch of {GLOBAL} does not divide among {world_size} ranks")
    spawn = multiprocessing.get_context("spawn")
    ranks = [
        spawn.Process(target=hand_out, args=(rank, world_size, backend, tmp_path), daemon=True)
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(150)
    assert [process.exitcode for process in ranks] == [0] * world_size
    told = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world_size)]
    for rank, one in enumerate(told):
        assert (one["tier"], one["device"]) == ("spread", f"cuda:{rank % CARDS}")
        assert one["rows"] == rows_of(LENGTH, world_size)
        assert one["taken"] < 1.2 * one["rows"] * ROW
    alone = Feed(Numbered(LENGTH, numbers=NUMBERS), batch_size=GLOBAL, shuffle=True, seed=3, device="cpu")
    with closing(alone):
        expected = [batch for _ in range(EPOCHS) for batch in alone]
    for step, batch in enumerate(expected):
        for name, tensor in batch.items():
            together = torch.cat([one["batches"][step][name] for one in told])
            assert torch.equal(together[: len(tensor)], tensor)
