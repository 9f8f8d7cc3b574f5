"""However many ranks a workload has: their batches together are those of one, and all come to the end."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker import workloads
from stoker.train.config_file import load
from stoker.train.task import Task, World

CPU = torch.device("cpu")
SMALL = {
    "sar": ["made.samples=27", "made.files=3", "made.side=32"],
    "imagenet": [
        "made.classes=4", "made.train_images=6", "made.valid_images=2", "made.scale=0.1", "classes=4",
        "pixels=40", "image_size=32",
    ],
    "vesuvius": [
        "made.volumes=2", "made.shape=[16,32,32]", "patch=[8,16,16]", "widths=[4,8]", "samples_per_epoch=24",
        "train_batch_size=8",
    ],
    "heimdall": ["made.samples=30", "made.iq_samples=16"],
}  # fmt: skip


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """The fields of a batch, one after another."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    return list(batch.values()) if isinstance(batch, Mapping) else list(batch)


def batches_of(
    task: Task[Any], world: World, state: dict[str, Any] | None = None
) -> list[list[torch.Tensor]]:
    """What a rank trains on in an epoch, or from a state on."""
    feeds = task.open_feeds(world, CPU)
    if state is not None:
        feeds.train.load_state_dict(state)
    taken = [tensors_of(batch) for batch in feeds.train]
    feeds.close()
    return taken


@pytest.mark.parametrize("name", SMALL)
def test_ranks_share_the_batches_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Crops and flips too; after a resume in the middle of an epoch they have what was still to come."""
    monkeypatch.chdir(tmp_path)
    workload = workloads.find(name)
    task = workload.task(
        load(workload.config, None, [*SMALL[name], "train.batch_size=8", "train.device=cpu"])
    )
    feeds = task.open_feeds(World(), CPU)
    batches = iter(feeds.train)
    first = tensors_of(next(batches))
    state = feeds.train.state_dict()
    rest = [tensors_of(batch) for batch in batches]
    feeds.close()
    assert len(rest) == 2
    for expected, begun in (([first, *rest], None), (rest, state)):
        ranks = [batches_of(task, World(rank=rank, size=2), begun) for rank in range(2)]
        for whole, *shares in zip(expected, *ranks, strict=True):
            for field, *parts in zip(whole, *shares, strict=True):
                assert torch.equal(field, torch.cat(parts))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_two_ranks_come_to_the_picture(tmp_path: Path, name: str) -> None:
    """As it is typed: rank 0 draws alone, and nobody waits for anybody for ever."""
    quick = ["train.devices=2", "train.device=cpu", "train.max_steps=2", "train.batch_size=8"]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "train", name, *quick, *SMALL[name], "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["ended"], told["step"]) == ("done", 2)
    assert told["pictures"]
    assert all((tmp_path / path).stat().st_size for path in told["pictures"])
