"""A training that was killed goes on to the same weights."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "tiny.py"
ONCE = ["train.save.every=2", "train.epochs=2"]


def train(folder: Path, *words: str, ranks: int = 1, expected: int = 0) -> str:
    """Train in a process of its own; what it told."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(folder), *words],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == expected, done.stderr[-3000:]
    return done.stderr


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint's."""
    newest = max((folder / "checkpoints").glob("step-*"))
    return load_file(newest / "model.safetensors")


def curve(folder: Path) -> list[tuple[str, int, float | None]]:
    """What was logged, without what differs from run to run (times, rates)."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line.get("loss", line.get("mae"))) for line in lines]


@pytest.mark.parametrize("micro", [8, 3])
def test_a_training_killed_at_any_step_ends_with_the_same_bits(tmp_path: Path, micro: int) -> None:
    """Killed twice by SIGKILL in a forward, with and without accumulation: same weights, same curve."""
    words = [*ONCE, f"train.micro_batch={micro}", "train.ema.decay=0.9", "train.clip=1.0"]
    train(tmp_path / "whole", *words)
    calls = -(-8 // micro)  # in a step
    early, late = (
        int(torch.randint(low, high, (), generator=torch.Generator().manual_seed(micro)))
        for low, high in ((3 * calls, 9 * calls), (1, 5 * calls))
    )
    for killed in (early, late):
        train(tmp_path / "killed", "--kill", str(killed), *words, expected=-signal.SIGKILL)
    told = train(tmp_path / "killed", *words)
    assert "goes on from step" in told
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")


def test_another_world_size_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Stopped with one rank and gone on with two, at the same batch: the same but for the order of sums.

    The last batch of each epoch is short and does not divide by two; the model has no batch statistics and
    draws nothing, since what a rank draws is its own.
    """
    words = [*ONCE, "norm=layer", "dropout=0", "train.micro_batch=4"]
    train(tmp_path / "whole", *words)
    train(tmp_path / "moved", "--kill", "9", *words, expected=-signal.SIGKILL)
    train(tmp_path / "moved", *words, ranks=2)
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "moved")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
    whole, moved = curve(tmp_path / "whole"), curve(tmp_path / "moved")
    assert [line[:2] for line in whole] == [line[:2] for line in moved]
    assert [line[2] for line in moved] == pytest.approx([line[2] for line in whole], rel=1e-4)


def test_sigterm_saves_and_ends(tmp_path: Path) -> None:
    """The step under way ends, its state is on the disk, and the exit code is that of the signal."""
    words = [*ONCE, "train.save.every=0", "slow_s=0.2"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path / "a"), *words, "train.log_every=1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 3/"):
            process.send_signal(signal.SIGTERM)
            break
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert "SIGTERM: saved at step" in told
    state = json.loads((max((tmp_path / "a" / "checkpoints").glob("step-*")) / "state.json").read_text())
    assert 3 <= state["step"] < 14
    train(tmp_path / "a", *ONCE, "train.save.every=0", "train.log_every=1")
    train(tmp_path / "b", *ONCE, "train.save.every=0", "train.log_every=1")
    found, expected = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
