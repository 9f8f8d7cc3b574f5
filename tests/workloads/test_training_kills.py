"""A training of a workload that was killed goes on to the same weights, to the bit."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "killed.py"
QUICK = [
    "train.epochs=2", "train.batch_size=8", "train.save.every=2", "train.log_every=2", "train.device=cpu",
    "train.preflight=false", "train.picture=false", "train.loggers=[]",
]  # fmt: skip
SMALL = {
    "sar": ["made.samples=54", "made.files=3", "made.side=32", "base=8"],
    "imagenet": [
        "made.classes=4", "made.train_images=6", "made.valid_images=2", "made.scale=0.1", "classes=4",
        "pixels=40", "image_size=32",
    ],
    "vesuvius": [
        "made.volumes=2", "made.shape=[24,48,48]", "patch=[8,16,16]", "widths=[4,8]", "samples_per_epoch=48",
        "train_batch_size=8",
    ],
    "heimdall": ["made.samples=60", "made.iq_samples=16", "width=16", "layers=2"],
}  # fmt: skip
# Calls of the loss in two epochs of training and their validations, less a few.
CALLS = {"sar": 12, "imagenet": 7, "vesuvius": 12, "heimdall": 12}


def train(name: str, folder: Path, *words: str, calls: int = 0, ranks: int = 1) -> int:
    """Train in a process of its own, with data in the folder beside; its exit code."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] * (ranks > 1)
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), name, str(folder), str(calls), *QUICK, *SMALL[name], *words],
        cwd=folder.parent, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert calls or done.returncode == 0, done.stderr[-3000:]
    return done.returncode


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint's."""
    loaded: dict[str, torch.Tensor] = load_file(
        max((folder / "checkpoints").glob("step-*")) / "model.safetensors"
    )
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("micro", [8, 3])
@pytest.mark.parametrize("name", SMALL)
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path, name: str, micro: int) -> None:
    """Killed by SIGKILL at a random step, with and without accumulation."""
    words = [f"train.micro_batch={micro}"]
    train(name, tmp_path / "whole", *words)
    calls = random.Random(f"{name} {micro}").randint(3, CALLS[name])
    assert train(name, tmp_path / "killed", *words, calls=calls) == -signal.SIGKILL
    train(name, tmp_path / "killed", *words)
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sar", "vesuvius", "heimdall"])
def test_another_world_size_ends_with_the_same_weights(tmp_path: Path, name: str) -> None:
    """No batch statistics: killed with one rank, gone on with two, the same but for sums' order."""
    train(name, tmp_path / "whole")
    assert train(name, tmp_path / "moved", calls=7) == -signal.SIGKILL
    train(name, tmp_path / "moved", ranks=2)
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "moved")
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-4)
