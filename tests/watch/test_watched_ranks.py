"""Real ranks under `torchrun … -m stoker run`: one record, joined afterwards; on cards where there are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.watch import Record
from stoker.watch.ranks import join_record, why_not_joined

LOOP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, late): self.late = late
    def __len__(self): return 240
    def __getitem__(self, index):
        time.sleep(self.late)
        return torch.full((8,), float(index % 7))

backend, late = sys.argv[1], int(sys.argv[2])
dist.init_process_group(backend)
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).to(device)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for x in DataLoader(Rows(0.005 * (rank == late)), batch_size=4):
    optimizer.zero_grad()
    model(x.to(device)).sum().backward()
    optimizer.step()
weights = sum(p.detach().double().sum().item() for p in model.parameters())
if rank == 0:
    print("WEIGHTS", repr(weights))
dist.destroy_process_group()
"""


def watched(folder: Path, ranks: int, *words: str, tool: tuple[str, ...] = ("-m", "stoker", "run")) -> str:
    (folder / "train.py").write_text(LOOP)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    done = subprocess.run(
        [sys.executable, *launcher, *tool, "train.py", *words],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("WEIGHTS"))


@pytest.mark.slow
def test_an_ordinary_watched_run_is_joined_and_trains_as_it_would_have(tmp_path: Path) -> None:
    """Four ranks leave one record; the late one and what it waits for are told from it alone."""
    said = watched(tmp_path, 4, "gloo", "2")
    assert said == watched(tmp_path, 4, "gloo", "2", tool=())
    record = Record.open("latest", tmp_path / ".stoker/runs")
    assert why_not_joined(record) is None
    found = join_record(record)
    assert found is not None
    assert (sorted(found.ranks), found.late.ranks) == ([0, 1, 2, 3], (2,))
    assert found.meetings == 2  # gradients, and the buffers of batch norm
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "latest", "--json", "--no-report"],
        cwd=tmp_path, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["verdict"]["cause"] == "straggler"
    assert told["verdict"]["cures"][0]["change"] == "rank_data"
    assert told["ranks"]["late"]["ranks"] == [2]


@pytest.mark.gpu
def test_ranks_on_cards_are_joined_by_their_devices_clocks(tmp_path: Path) -> None:
    """Each has its own; the late one is known all the same. NCCL takes one rank a card."""
    cards = torch.cuda.device_count()
    backend, ranks = ("nccl", cards) if cards > 1 else ("gloo", 2)
    watched(tmp_path, ranks, backend, "1")
    record = Record.open("latest", tmp_path / ".stoker/runs")
    assert {of.about["collectives"]["clock"] for of in record.ranks.values()} == {"device"}
    found = join_record(record)
    assert found is not None
    assert found.late.ranks == (1,)
    assert found.late.seconds > 0.5 * 0.02
    assert found.link < found.late.seconds
