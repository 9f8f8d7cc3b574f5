"""A training of a workload that was killed goes on to the same weights, to the bit."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "killed.py"
BATCH = 8
QUICK = [
    "train.epochs=2", f"train.batch_size={BATCH}", "train.save.every=2", "train.log_every=2",
    "train.device=cpu", "train.preflight=false", "train.picture=false", "train.loggers=[]",
]  # fmt: skip
SMALL = {
    "sar": ["made.samples=54", "made.files=3", "made.side=32", "base=8"],
    "imagenet": [
        "made.classes=4", "made.train_images=6", "made.valid_images=2", "made.scale=0.1", "classes=4",
        "pixels=40", "image_size=32",
    ],
    "vesuvius": [
        "made.volumes=2", "made.shape=[24,48,48]", "patch=[8,16,16]", "widths=[4,8]", "samples_per_epoch=48",
        f"train_batch_size={BATCH}",
    ],
    "heimdall": ["made.samples=60", "made.iq_samples=16", "width=16", "layers=2"],
}  # fmt: skip
# In two epochs.
STEPS = {"sar": 12, "imagenet": 6, "vesuvius": 12, "heimdall": 12}
Weights: TypeAlias = dict[str, torch.Tensor]


def train(name: str, folder: Path, micro: int, *, calls: int = 0, ranks: int = 1) -> tuple[int, str]:
    """Train in a process of its own, with data in the folder beside; its exit code, and what it said."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] * (ranks > 1)
    words = [*QUICK, *SMALL[name], f"train.micro_batch={micro}"]
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), name, str(folder), str(calls), *words],
        cwd=folder.parent, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert calls or done.returncode == 0, done.stderr[-3000:]
    return done.returncode, done.stderr


def kill(name: str, folder: Path, micro: int, *, ranks: int = 1) -> int:
    """Train until SIGKILL in a random step, or in the middle of its micro-batches; the exit code."""
    draw = random.Random(f"{name} {micro} {ranks}")
    parts = -(-BATCH // ranks // micro)
    step = draw.randint(3, STEPS[name])
    code, _ = train(name, folder, micro, calls=(step - 1) * parts + draw.randint(1, parts), ranks=ranks)
    assert not (folder / "result.json").exists()
    return code


def go_on(name: str, folder: Path, micro: int, *, ranks: int = 1) -> Weights:
    """What a training that was killed ends with."""
    _, said = train(name, folder, micro, ranks=ranks)
    assert "goes on from step" in said
    return weights(folder)


def weights(folder: Path) -> Weights:
    """The last checkpoint's."""
    loaded: Weights = load_file(max((folder / "checkpoints").glob("step-*")) / "model.safetensors")
    return loaded


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Weights]:
    """What a workload ends with on one rank when nobody kills it, by its micro-batch."""

    @cache
    def find(name: str, micro: int) -> Weights:
        folder = tmp_path_factory.mktemp(name) / "whole"
        train(name, folder, micro)
        return weights(folder)

    return find


@pytest.mark.slow
@pytest.mark.parametrize("micro", [8, 3])
@pytest.mark.parametrize("name", SMALL)
def test_a_killed_training_ends_with_the_same_bits(
    tmp_path: Path, trained: Callable[[str, int], Weights], name: str, micro: int
) -> None:
    """Killed by SIGKILL at a random step, without accumulation and with it."""
    expected = trained(name, micro)
    assert kill(name, tmp_path / "killed", micro) == -signal.SIGKILL
    found = go_on(name, tmp_path / "killed", micro)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)])
@pytest.mark.parametrize("micro", [8, 3])
@pytest.mark.parametrize("name", ["sar", "vesuvius", "heimdall"])
def test_another_world_size_ends_with_the_same_weights(
    tmp_path: Path, trained: Callable[[str, int], Weights], name: str, micro: int, ranks: tuple[int, int]
) -> None:
    """No batch statistics: killed with one rank or two, gone on with the other, the same but for sums' order.

    ImageNet's have them, and there only the samples are the same (test_world_sizes.py).
    """
    expected = trained(name, micro)
    assert kill(name, tmp_path / "moved", micro, ranks=ranks[0]) != 0
    found = go_on(name, tmp_path / "moved", micro, ranks=ranks[1])
    assert expected.keys() == found.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-4)
