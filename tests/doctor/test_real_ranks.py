"""Real ranks over gloo: one diagnosis of all of them, held at the same steps, and ended together."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.parts import Parts, as_argument
from stoker.doctor.rank_evidence import read_ranks
from stoker.doctor.rank_trial import board_path
from stoker.doctor.spawned import run_of_ranks
from stoker.scratch import Limits, Plan, Result, run
from stoker.watch import Record

BODY = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, late): self.late = late
    def __len__(self): return 2000
    def __getitem__(self, index):
        time.sleep(self.late)
        return torch.full((8,), float(index % 7))

def train(rank):
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Rows(0.004 * rank), batch_size=4)
    step = 0
    for epoch in range(50):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            step += 1
            if rank == 1 and step == {dies}:
                os.kill(os.getpid(), signal.SIGKILL)
"""
JOINED = """
init_process_group("gloo")
train(dist.get_rank())
"""
SPAWNED = """
def main(rank):
    init_process_group("gloo", init_method="file://" + os.path.abspath("met"), rank=rank, world_size=2)
    train(rank)

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""
SHORT = Parts(
    warm_steps=3,
    observe_steps=20,
    observe_seconds=0.0,
    replay_steps=12,
    replay_seconds=0.0,
    drain_seconds=0.1,
)


def write(folder: Path, tail: str, *, dies: int = -1) -> Path:
    path = folder / "train.py"
    path.write_text(BODY.replace("{dies}", str(dies)) + tail)
    return path


def hold(script: Path, runs: Path, *, ranks: int) -> Result:
    return run(
        Plan(
            command=(str(script),),
            hook="stoker.doctor.trial:prepare",
            argument={**as_argument(runs, "it", SHORT), "ranks": ranks},
            limits=Limits(seconds=90),
            writable=(runs,),
            ranks=ranks,
            env={"GLOO_SOCKET_IFNAME": "lo"},
        )
    )


@pytest.mark.parametrize(
    ("tail", "ranks", "name"),
    [(JOINED, 2, "it"), (SPAWNED, 1, run_of_ranks("it"))],
    ids=["joined", "spawned"],
)
def test_all_ranks_go_through_the_same_parts_at_the_same_steps(
    tmp_path: Path, tail: str, ranks: int, name: str
) -> None:
    """Those that the doctor starts, and those that the script starts; then the late one is known."""
    runs = tmp_path / "doctor"
    result = hold(write(tmp_path, tail), runs, ranks=ranks)
    assert result.outcome == "done", result
    told = {rank: {one.kind: one.body for one in result.messages if one.rank == rank} for rank in (0, 1)}
    for kinds in told.values():
        assert {"began", "observed", "replay", "batch", "drain", "links", "finished"} <= kinds.keys()
        assert kinds["links"]["why"] is None
        assert [one["rate"] > 0 for one in kinds["links"]["transfers"]] == [True]
        assert kinds["observed"]["draws"] == told[0]["observed"]["draws"]
        assert set(kinds["observed"]["work"]) == {32}  # elements that the model is called with
    record = Record.open(runs / name)
    assert sorted(record.ranks) == [0, 1]
    steps = [[meeting.step for meeting in one.meetings()] for one in record.ranks.values()]
    assert steps[0] == steps[1]
    evidence = read_ranks(record, result.messages, {}, {})
    assert evidence is not None
    assert evidence.together is not None
    together = evidence.together
    assert (len(together.met.ranks), together.met.late.ranks, together.met.meetings) == (2, (1,), 1)
    assert together.more["wait"] > 0
    assert "no-overlap" in together.causes
    assert [(one.sender, one.receiver) for one in together.transfers] == [(0, 1), (1, 0)]
    board_path(runs, name).unlink()  # which whoever starts them removes


def doctor(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *launcher, "-m", "stoker", "doctor", *words],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_a_rank_that_is_killed_amid_the_diagnosis_is_told_of(tmp_path: Path) -> None:
    """The others are ended with it, and nothing is left but the record."""
    script = write(tmp_path, JOINED, dies=15)
    done = doctor(tmp_path, "--nproc", "2", script.name)
    assert done.returncode == 1
    assert "rank 1: killed by signal 9 (SIGKILL)" in done.stderr
    assert not list((tmp_path / ".stoker" / "doctor").rglob("*board"))


@pytest.mark.quiet
def test_torchrun_gives_one_verdict_for_all_ranks(tmp_path: Path) -> None:
    """Printed once, with the late rank and what it waits for; the working folder is as it was."""
    script = write(tmp_path, JOINED)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = doctor(tmp_path, "--json", "--no-report", "--budget", "30", script.name, launcher=launcher)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["verdict"]["cause"] == "straggler"
    assert "rank 1 comes" in told["verdict"]["why"][0]
    assert "waiting for its loader" in told["verdict"]["why"][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stoker", "train.py"]
    assert sorted(path.name for path in Path(told["record"]).glob("rank*")) == ["rank0", "rank1"]
    assert not list((tmp_path / ".stoker" / "doctor").rglob("*board"))


def test_nproc_and_a_launcher_are_one_too_many(tmp_path: Path) -> None:
    """Wrong use is said before anything is started."""
    script = write(tmp_path, JOINED)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "--nproc", "2", script.name],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={"WORLD_SIZE": "2", "RANK": "0", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert "leave one of the two out" in done.stderr
