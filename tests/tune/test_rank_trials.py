"""Trials of two real ranks over gloo: begun and ended together, measured as one, stopped as one."""

import textwrap
from pathlib import Path

import psutil
import pytest

from stoker.scratch import Guards
from stoker.tune.meaning import take
from stoker.tune.trial import Outcome, hold
from stoker.watch import Record

SCRIPT = """
    import os, sys, time, torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    class Slow(Dataset):
        def __len__(self):
            return 1600
        def __getitem__(self, at):
            time.sleep(0.0005)
            return torch.full((4,), at / 1600)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, hoard, step = Slow(), [], 0
    sampler = DistributedSampler(data)
    try:
        for epoch in range(50):
            # So many batches on each rank, although the second has larger ones.
            for _, x in zip(range(90), DataLoader(data, batch_size=4 + 4 * rank, sampler=sampler)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                step += 1
                if rank == 1 and step == 5:
                    if "dies" in sys.argv:
                        os.kill(os.getpid(), 11)
                    if "fails" in sys.argv:
                        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                    if "hangs" in sys.argv:
                        time.sleep(600)
                if rank == 1 and "hoards" in sys.argv:
                    hoard.append(torch.ones(8 << 20))
    finally:
        dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A loop of two ranks; the second has twice the batch."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


def test_ranks_are_measured_as_one_and_end_after_the_same_step(script: str, tmp_path: Path) -> None:
    """The rate is that of all samples, the change is in place on both, and nothing is left."""
    before = children()
    trial = hold([script], {"num_workers": 1}, folder=tmp_path / "trial", seconds=0.1, ranks=2)
    assert trial.outcome == "measured", trial.reason
    assert trial.rates is not None
    assert (trial.rates.unit, trial.rates.size) == ("sample", 12.0)
    assert trial.told == ("changed: DataLoader(Slow): num_workers 0 -> 1, prefetch_factor None -> 2",)
    assert trial.record is not None
    made = [len(list(rank.steps())) for rank in Record.open(trial.record).ranks.values()]
    assert made[0] == made[1] > 150
    assert sorted(path.name for path in (tmp_path / "trial").iterdir()) == [
        "record",
        "stderr.txt",
        "stdout.txt",
    ]
    assert children() == before


@pytest.mark.parametrize(
    ("word", "guards", "outcome", "says"),
    [
        # The first rank fails too, when the second closes its connections: that is not the reason.
        ("fails", Guards(), "failed", "rank 1: exit code 1: OutOfMemoryError: CUDA out of memory"),
        pytest.param("dies", Guards(), "crashed", "rank 1: killed by signal 11", marks=pytest.mark.slow),
        pytest.param(
            "hoards", Guards(ram_bytes=2 << 30), "stopped", "rank 1 holds most of it", marks=pytest.mark.slow
        ),
        pytest.param("hangs", Guards(), "hung", "no progress for 6 s, at step 5", marks=pytest.mark.slow),
    ],
)
def test_what_stops_one_rank_stops_the_trial(
    script: str, tmp_path: Path, word: str, guards: Guards, outcome: Outcome, says: str
) -> None:
    """With the reason and the rank; no rank goes on alone, and nothing is left."""
    before = children()
    folder = tmp_path / "trial"
    trial = hold([script, word], {}, folder=folder, seconds=60, idle=6.0, guards=guards, ranks=2)
    assert (trial.outcome, trial.rate) == (outcome, None), trial.reason
    assert says in trial.reason
    assert children() == before


def test_a_probe_looks_at_every_rank(script: str) -> None:
    """Each has its own samples, of as many steps."""
    probe = take([script], {}, steps=6, ranks=2)
    first, second = probe.ranks
    assert [len(ids) for ids in first.ids] == [4] * 6
    assert [len(ids) for ids in second.ids] == [8] * 6
    assert (len(first.losses), len(second.losses)) == (6, 6)
