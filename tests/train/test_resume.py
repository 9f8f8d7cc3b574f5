"""A training that was killed, or told to stop, goes on to the same weights."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import Tiny, TinyConfig
from torch import nn

from stoker.train.config_file import load
from stoker.train.fit import Fitted, fit
from stoker.train.task import Losses

SCRIPT = Path(__file__).parent / "tiny.py"
STEPS = 14
SETTINGS = ["train.save.every=2", "train.epochs=2"]
# A model without batch statistics and without draws: what a rank sees and draws is its own.
ALIKE = [*SETTINGS, "norm=layer", "dropout=0", "train.micro_batch=4"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the processes that are started here have: with other threads, sums have another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_here(folder: Path, *words: str) -> Fitted:
    """Train in this process."""
    return fit(Tiny(load(TinyConfig, None, words)), out=folder, tell=lambda text: None)


def train(folder: Path, *words: str, ranks: int = 1, expected: int = 0) -> str:
    """Train in a process of its own, or in two; what it told."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(folder), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == expected, done.stderr[-3000:]
    return done.stderr


def stop_here(folder: Path, *words: str, calls: int, told: list[str] | None = None) -> Fitted:
    """Train in this process, which sends itself SIGTERM in a forward, after so many."""

    class Told(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Losses:
            if self.calls == calls:
                signal.raise_signal(signal.SIGTERM)
            return super().loss(model, batch)

    heard: list[str] = [] if told is None else told
    return fit(Told(load(TinyConfig, None, words)), out=folder, tell=heard.append)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint's."""
    newest = max((folder / "checkpoints").glob("step-*"))
    loaded: dict[str, torch.Tensor] = load_file(newest / "model.safetensors")
    return loaded


def curve(folder: Path) -> list[tuple[str, int, float | None]]:
    """What was logged, without what differs from run to run (times, rates)."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line.get("loss", line.get("mae"))) for line in lines]


def state(folder: Path) -> dict[str, Any]:
    """All of the last checkpoint, by name: weights, their mean, optimizer, scaler, generators, counts."""
    newest = max((folder / "checkpoints").glob("step-*"))
    kept = {"plain": json.loads((newest / "state.json").read_text())}
    for path in newest.glob("*.safetensors"):
        kept[path.name] = load_file(path)
    return {**kept, **torch.load(newest / "state.pt", weights_only=True)}


def assert_alike(expected: Any, found: Any, at: str = "") -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(expected, found), at
    elif isinstance(expected, (dict, list, tuple)):
        assert len(expected) == len(found), at
        for name in expected if isinstance(expected, dict) else range(len(expected)):
            assert_alike(expected[name], found[name], f"{at}/{name}")
    else:
        assert expected == found, at


def assert_same_bits(one: Path, other: Path) -> None:
    assert_alike(state(one), state(other))
    assert curve(one) == curve(other)


def assert_close(one: Path, other: Path) -> None:
    expected, found = weights(one), weights(other)
    for name in expected:
        if ".norm." not in name:  # of `beside`: each rank's own
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
    before, after = ([line for line in curve(at) if line[0] != "memory"] for at in (one, other))
    assert [line[:2] for line in before] == [line[:2] for line in after]
    assert [line[2] for line in after] == pytest.approx([line[2] for line in before], rel=1e-4)


@pytest.mark.parametrize("micro", [8, 3])
def test_a_training_killed_in_a_step_ends_with_the_same_bits(tmp_path: Path, micro: int) -> None:
    """SIGKILL in the forward of a random step, with and without accumulation: same weights, same curve."""
    words = [*SETTINGS, f"train.micro_batch={micro}", "train.ema.decay=0.9", "train.clip=1.0"]
    train_here(tmp_path / "whole", *words)
    calls = (STEPS - 2) * -(-8 // micro)
    killed = random.Random().randint(3, calls)
    train(tmp_path / "killed", "--kill", str(killed), *words, expected=-signal.SIGKILL)
    assert train_here(tmp_path / "killed", *words).step == STEPS, f"killed in forward {killed}"
    assert_same_bits(tmp_path / "whole", tmp_path / "killed")


def test_a_training_told_to_stop_saves_and_goes_on(tmp_path: Path) -> None:
    """The step under way ends and is on the disk, though none was due; the rest gives the same bits."""
    words = ["train.save.every=0", "train.epochs=2", "train.log_every=3"]
    told: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    stopped = stop_here(tmp_path / "a", *words, calls=4, told=told)
    assert (stopped.ended, stopped.step) == ("stopped", 5)
    assert "SIGTERM: saved at step 5" in told[-1]
    assert signal.getsignal(signal.SIGTERM) is before
    assert train_here(tmp_path / "a", *words).resumed == 5
    train_here(tmp_path / "b", *words)
    assert_same_bits(tmp_path / "a", tmp_path / "b")


def test_the_first_ctrl_c_saves_and_the_second_ends_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first is answered when it comes; after the second, the last checkpoint is what there is."""

    class Told(Tiny):
        presses = 1

        def loss(self, model: nn.Module, batch: Any) -> Losses:
            if self.calls == 4:
                for _ in range(self.presses):
                    signal.raise_signal(signal.SIGINT)
            return super().loss(model, batch)

    task = Told(load(TinyConfig, None, SETTINGS))
    stopped = fit(task, out=tmp_path / "once", tell=lambda text: None)
    assert (stopped.ended, stopped.step) == ("stopped", 5)
    assert capfd.readouterr().err.startswith("Ctrl-C: heard")
    task = Told(load(TinyConfig, None, SETTINGS))
    task.presses = 2
    with pytest.raises(KeyboardInterrupt):
        fit(task, out=tmp_path / "twice", tell=lambda text: None)
    train_here(tmp_path / "whole", *SETTINGS)
    for name, resumed in (("once", 5), ("twice", 4)):
        assert train_here(tmp_path / name, *SETTINGS).resumed == resumed
        assert_same_bits(tmp_path / name, tmp_path / "whole")


@pytest.mark.parametrize("moment", ["see", "picture"])
def test_a_training_told_to_stop_at_its_picture_draws_it_the_next_time(tmp_path: Path, moment: str) -> None:
    """At once, in the middle of it, or told in the last save: whoever stops it does not wait for hours."""

    class Told(Tiny):
        asked = True

        def picture(self, model: nn.Module, feeds: Any, folder: Path) -> list[Path]:
            if self.asked and moment == "picture":
                signal.raise_signal(signal.SIGTERM)
            return super().picture(model, feeds, folder)

    def hear(text: str) -> None:
        told.append(text)
        if moment == "see" and text.startswith("valid") and len(told) > 5:
            signal.raise_signal(signal.SIGTERM)

    told: list[str] = []
    words = [*SETTINGS, "train.picture=true"]
    stopped = fit(Told(load(TinyConfig, None, words)), out=tmp_path, tell=hear)
    assert (stopped.ended, stopped.step, stopped.pictures, stopped.exit_code) == ("stopped", STEPS, (), 143)
    assert not (tmp_path / "picture.txt").exists()
    assert json.loads((tmp_path / "result.json").read_text())["ended"] == "stopped"
    assert "SIGTERM: saved at step 14" in told[-1]
    again = Told(load(TinyConfig, None, words))
    again.asked = False
    done = fit(again, out=tmp_path, tell=lambda text: None)
    assert (done.ended, done.resumed, done.pictures) == ("done", STEPS, (tmp_path / "picture.txt",))


def test_a_training_told_to_stop_before_its_first_step_makes_none(tmp_path: Path) -> None:
    """While data are made, say: nothing is saved, and the same command begins at the beginning."""

    class Told(Tiny):
        def build_model(self) -> nn.Module:
            signal.raise_signal(signal.SIGTERM)
            return super().build_model()

    told: list[str] = []
    stopped = fit(Told(load(TinyConfig, None, SETTINGS)), out=tmp_path, tell=told.append)
    assert (stopped.ended, stopped.step) == ("stopped", 0)
    assert "SIGTERM: no step was made" in told[-1]
    assert train_here(tmp_path, *SETTINGS).resumed is None


def test_a_scaler_of_gradients_goes_on_where_it_stood(tmp_path: Path) -> None:
    """fp16: the scale, and how many steps it has held for, are the same as without the stop."""
    words = [*SETTINGS, "train.precision=fp16", "train.ema.decay=0.9", "train.clip=1.0"]
    stop_here(tmp_path / "a", *words, calls=4)
    train_here(tmp_path / "a", *words)
    train_here(tmp_path / "b", *words)
    kept = state(tmp_path / "b")["scaler"]
    assert kept["_growth_tracker"] > 5, "steps that were made with this scale"
    assert_same_bits(tmp_path / "a", tmp_path / "b")


def test_a_training_told_to_stop_in_a_validation_makes_it_again(tmp_path: Path) -> None:
    """It is left at its next batch, whatever it has drawn by then; the epoch stands once in the curve."""

    class Told(Tiny):
        asked = False

        def judge(self, model: nn.Module, batch: Any, metrics: Any) -> None:
            torch.rand(3)
            if self.asked:
                signal.raise_signal(signal.SIGTERM)
            super().judge(model, batch, metrics)

    task = Told(load(TinyConfig, None, SETTINGS))
    task.asked = True
    stopped = fit(task, out=tmp_path / "a", tell=lambda text: None)
    assert (stopped.ended, stopped.step, stopped.metrics) == ("stopped", 7, {})
    for name in ("a", "b"):
        fit(Told(load(TinyConfig, None, SETTINGS)), out=tmp_path / name, tell=lambda text: None)
    assert_same_bits(tmp_path / "a", tmp_path / "b")


def test_a_training_told_to_stop_at_an_epochs_end_validates_when_it_goes_on(tmp_path: Path) -> None:
    """A stop does not wait for a validation; it is made up for, and nothing is twice in the curve."""
    stopped = stop_here(tmp_path / "a", *SETTINGS, calls=6)
    assert (stopped.step, stopped.metrics) == (7, {})
    train_here(tmp_path / "a", *SETTINGS)
    train_here(tmp_path / "b", *SETTINGS)
    assert_same_bits(tmp_path / "a", tmp_path / "b")


def test_two_ranks_go_on_where_one_stopped_and_back_off_together(tmp_path: Path) -> None:
    """At the same batch the weights are the same but for the order of sums, though one rank has less memory.

    The last batch of each epoch is short, and padded by the feed to be two shares: that does not count. Both
    judge with the statistics of rank 0, of weights and of their mean, as they are saved.
    """
    words = [*ALIKE, "beside=true", "train.ema.decay=0.9"]
    train_here(tmp_path / "whole", *words)
    stop_here(tmp_path / "moved", *words, calls=8)
    judged = tmp_path / "judged"
    told = train(tmp_path / "moved", *words, "most=2", "short_rank=1", f"judged={judged}", ranks=2)
    by_rank = [Path(f"{judged}-{rank}").read_text().splitlines() for rank in range(2)]
    assert by_rank[0] == by_rank[1]
    [mean] = {
        json.dumps(load_file(path)["5.norm.running_mean"].tolist())
        for path in [max((tmp_path / "moved" / "checkpoints").glob("step-*")) / "mean.safetensors"]
    }
    assert mean in by_rank[1][-1]
    assert "another rank ran out of memory: micro-batches of 2 instead of 4" in told
    result = json.loads((tmp_path / "moved" / "result.json").read_text())
    assert (result["resumed"], result["micro_batch"]) == (5, 2)
    assert_close(tmp_path / "whole", tmp_path / "moved")


def test_a_rank_without_memory_for_the_exchange_of_gradients_says_so_before_it(tmp_path: Path) -> None:
    """Both make the step again in smaller micro-batches, and nobody waits for a sum that does not come."""
    train_here(tmp_path / "whole", *ALIKE)
    told = train(tmp_path / "short", *ALIKE, "no_room=3", ranks=2)
    assert "another rank ran out of memory: micro-batches of 2 instead of 4" in told
    assert_close(tmp_path / "whole", tmp_path / "short")


def test_a_rank_that_begins_without_a_sample_has_a_scaler_too(tmp_path: Path) -> None:
    """fp16, 5 samples for 4 ranks: the last has none in its first step, at first and after a resume."""
    words = [*ALIKE, "samples=5", "train.precision=fp16", "train.epochs=2", "norm=layer", "train.clip=1.0"]
    train(tmp_path, *words, "train.max_steps=1", ranks=4)
    train(tmp_path, *words, ranks=4)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["ended"], result["resumed"], result["step"]) == ("done", 1, 2)


@pytest.mark.slow
def test_ranks_that_the_trainer_starts_itself(tmp_path: Path) -> None:
    """`train.devices=2` without a launcher: the weights are those of one rank, up to the order of sums."""
    train_here(tmp_path / "one", *ALIKE)
    train(tmp_path / "two", *ALIKE, "train.devices=2")
    assert_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_ranks_that_the_trainer_starts_itself_are_told_to_stop(tmp_path: Path) -> None:
    """143, though rank 0 has much to do still when the others have ended: they did not crash."""
    words = [*ALIKE, "train.devices=2", "slow_s=0.05", "slow_end_s=8"]
    running = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("step 5/"):
            running.send_signal(signal.SIGTERM)
    running.stderr.close()
    assert running.wait(timeout=60) == 143
    assert json.loads((tmp_path / "result.json").read_text())["ended"] == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("micro", [8, 3])
def test_a_training_killed_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, micro: int, seed: int
) -> None:
    """Three kills in a row, each at a random step of what is left."""
    draw = random.Random(seed)
    words = [*SETTINGS, f"train.micro_batch={micro}", "train.ema.decay=0.9", "train.clip=1.0"]
    train_here(tmp_path / "whole", *words)
    for _ in range(3):
        killed = draw.randint(1, 4 * -(-8 // micro))
        train(tmp_path / "killed", "--kill", str(killed), *words, expected=-signal.SIGKILL)
    train_here(tmp_path / "killed", *words)
    assert_same_bits(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_ranks_told_to_stop_by_their_launcher_save_and_go_on(tmp_path: Path) -> None:
    """SIGTERM to torchrun, as a scheduler sends it: all end at one step, which one rank goes on from."""
    words = [*ALIKE, "slow_s=0.05"]
    running = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            str(SCRIPT), str(tmp_path / "moved"), *words,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    told = []
    for line in running.stderr:
        told.append(line)
        if line.startswith("step 5/"):
            running.send_signal(signal.SIGTERM)
    running.wait(timeout=60)
    running.stderr.close()
    assert any("SIGTERM: saved at step" in line for line in told), "".join(told)[-3000:]
    resumed = train_here(tmp_path / "moved", *ALIKE).resumed
    assert resumed is not None
    assert 5 <= resumed < STEPS
    train_here(tmp_path / "whole", *ALIKE)
    assert_close(tmp_path / "whole", tmp_path / "moved")
