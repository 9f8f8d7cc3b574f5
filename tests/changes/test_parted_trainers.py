"""Batches in parts under several ranks, and under trainers that count batches: right, or refused."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

RANKED = """
    import json, sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from stoker import changes

    changes.put(json.loads(sys.argv[1]))
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 45 * 4).reshape(45, 4).sin()
    data = TensorDataset(x, x.sum(1, keepdim=True))
    given = {"sampler": DistributedSampler(data)} if sys.argv[2] == "sampled" else {"shuffle": True}
    for x, y in DataLoader(data, batch_size=8, **given):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    print(json.dumps([float(w) for p in model.parameters() for w in p.detach().flatten()]))
"""
LIGHTNING = """
    import torch, lightning
    from torch.utils.data import DataLoader
    from stoker import changes

    changes.put({"micro_batch": 2})

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)
        def training_step(self, batch, at):
            return self.inner(batch).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.fit(Module(), DataLoader(torch.ones(32, 4), batch_size=8))
"""
TRANSFORMERS = """
    import torch, transformers
    from stoker import changes

    changes.put({"micro_batch": 2})

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)
        def forward(self, x):
            return {"loss": self.inner(x).square().mean()}

    given = transformers.TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, max_steps=2, use_cpu=True, report_to=[]
    )
    transformers.Trainer(Model(), given, train_dataset=[{"x": torch.ones(4)}] * 32).train()
"""
pytestmark = pytest.mark.slow


def run_ranks(path: Path, changes: dict[str, Any], sampled: str) -> "list[subprocess.CompletedProcess[str]]":
    path.write_text(textwrap.dedent(RANKED))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, str(path), json.dumps(changes), sampled],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [one.communicate(timeout=120) for one in started]
    return [
        subprocess.CompletedProcess(one.args, one.returncode, *told)
        for one, told in zip(started, said, strict=True)
    ]


def test_two_ranks_make_the_weights_of_whole_batches(tmp_path: Path) -> None:
    """On both, the last and smaller batch included: gradients are averaged part by part."""
    whole = run_ranks(tmp_path / "train.py", {}, "sampled")
    parts = run_ranks(tmp_path / "train.py", {"micro_batch": 3}, "sampled")
    weights = [json.loads(one.stdout) for one in (*whole, *parts)]
    assert weights[0] == weights[1]
    assert weights[2] == weights[3]
    assert weights[2] == pytest.approx(weights[0], rel=1e-4, abs=1e-6)


def test_ranks_that_may_draw_batches_of_other_sizes_are_refused(tmp_path: Path) -> None:
    """One would wait for the other's part for ever, or take another's for it."""
    for one in run_ranks(tmp_path / "train.py", {"micro_batch": 3}, "shuffled"):
        assert "with 2 ranks only a DistributedSampler" in one.stderr


@pytest.mark.parametrize(
    ("package", "script", "says"),
    [
        ("lightning", LIGHTNING, "lightning counts batches itself; use accumulate_grad_batches"),
        ("transformers", TRANSFORMERS, "counts batches itself; use gradient_accumulation_steps"),
    ],
)
def test_trainers_are_refused_with_their_own_setting(
    tmp_path: Path, package: str, script: str, says: str
) -> None:
    """They draw as many batches as they counted, so parts would be taken for batches."""
    pytest.importorskip(package)
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode
    assert says in done.stderr
