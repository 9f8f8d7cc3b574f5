"""What a training does on its way: schedules, means, early ends, folders, pictures, precision."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import Line, Tiny, TinyConfig, plain
from torch import nn

from stoker.errors import MissingExtra, NotPermitted, TrainingFailed, UsageError
from stoker.feed import Feed
from stoker.train import folder as folders
from stoker.train.config import EmaConfig, OptimizerConfig, SaveConfig, ScheduleConfig, StopConfig
from stoker.train.devices import open_fabric
from stoker.train.ema import Ema
from stoker.train.fit import fit
from stoker.train.loop import is_better
from stoker.train.memory import DeviceMemory
from stoker.train.microbatch import count_samples, cut_samples, halve, spans
from stoker.train.pace import Pace
from stoker.train.precision import put_channels_last
from stoker.train.schedule import rate_factor
from stoker.train.step import Stepper
from stoker.train.task import Feeds, World


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


# --- the whole ------------------------------------------------------------------------------------


def test_it_learns(tmp_path: Path) -> None:
    """A line is learnt: the error ends far below that of predicting the mean, and the best is kept."""
    settings = plain(epochs=15, save=SaveConfig(every=0), optimizer=OptimizerConfig(name="adamw", lr=0.2))
    fitted = fit(Tiny(TinyConfig(norm="layer", dropout=0.0, train=settings)), out=tmp_path)
    judged = [line["mae"] for line in lines(tmp_path, "valid")]
    assert len(judged) == 15
    assert judged[-1] < Line(18).y.abs().mean() / 4
    assert fitted.best is not None
    assert fitted.best.value == min(judged)
    assert (fitted.ended, fitted.step) == ("done", 15 * 7)


def test_what_is_written_down(tmp_path: Path) -> None:
    """Curves by absolute step in metrics.jsonl and in TensorBoard's files, the settings, the result."""
    task = Tiny(TinyConfig(train=plain(epochs=1, loggers=("tensorboard",), picture=True)))
    told: list[str] = []
    fitted = fit(task, out=tmp_path, tell=told.append)
    [logged] = lines(tmp_path, "train")
    assert logged["step"] == 5
    assert {"loss", "off", "lr", "samples_per_second", "eta_seconds", "micro_batch"} <= logged.keys()
    assert list((tmp_path / "tensorboard").iterdir())
    assert json.loads((tmp_path / "config.json").read_text())["train"]["batch_size"] == 8
    assert json.loads((tmp_path / "result.json").read_text())["ended"] == "done"
    assert fitted.pictures == (tmp_path / "picture.txt",)
    assert "done: the best mae is " in told[-2]
    assert told[-1] == f"see {tmp_path / 'picture.txt'}"


def test_a_result_is_json_whatever_was_measured(tmp_path: Path) -> None:
    """What is no number is null: a strict reader would refuse the file."""

    class Undefined(Tiny):
        def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
            metrics["mae"].update(model(batch[0]) * math.nan, batch[1])

    fitted = fit(Undefined(TinyConfig(train=plain(epochs=1))), out=tmp_path)
    assert math.isnan(fitted.metrics["mae"])
    assert (fitted.best, fitted.to_json()["metrics"]) == (None, {"mae": None})
    assert "NaN" not in (tmp_path / "result.json").read_text()


def test_the_epochs_loss_is_the_mean_over_its_samples(tmp_path: Path) -> None:
    """Short batches and micro-batches weigh as much as they have samples: at a rate of nearly 0, exactly."""
    settings = plain(epochs=1, micro_batch=3, optimizer=OptimizerConfig(name="sgd", lr=1e-12))
    task = Tiny(TinyConfig(norm="layer", dropout=0.0, train=settings))
    fit(task, out=tmp_path)
    model = task.build_model()
    model.load_state_dict(load_file(max((tmp_path / "checkpoints").glob("step-*")) / "model.safetensors"))
    data = Line()
    with torch.no_grad():
        expected = nn.functional.mse_loss(model(data.x), data.y)
    [epoch] = lines(tmp_path, "epoch")
    assert epoch["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_other_precisions_train(tmp_path: Path, precision: str) -> None:
    """A finite loss, and fp16 keeps its scaler's state; switches of the process are put back."""
    before = torch.get_float32_matmul_precision()
    settings = plain(epochs=1, precision=precision, channels_last=True, clip=1.0)
    fit(Tiny(TinyConfig(train=settings)), out=tmp_path)
    [epoch] = lines(tmp_path, "epoch")
    assert math.isfinite(epoch["loss"])
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    kept = torch.load(newest / "state.pt", weights_only=True)
    assert ("scale" in kept["scaler"]) == (precision == "fp16")
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in its compiler
def test_a_compiled_model_trains_to_the_same_weights(tmp_path: Path) -> None:
    """Compiled in place: the checkpoint's names are the model's own, its values close, and it is resumed."""
    for name, compiled in (("plain", False), ("compiled", True)):
        for steps in (5, 14):
            settings = plain(epochs=2, max_steps=steps, compile=compiled, save=SaveConfig(every=0))
            fit(Tiny(TinyConfig(norm="layer", dropout=0.0, train=settings)), out=tmp_path / name)
    expected, found = (
        load_file(max((tmp_path / name / "checkpoints").glob("step-*")) / "model.safetensors")
        for name in ("plain", "compiled")
    )
    assert expected.keys() == found.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4)


def test_a_loss_that_is_not_finite_ends_the_training_and_is_not_saved(tmp_path: Path) -> None:
    """The last checkpoint is from before, and the error says what to change."""

    class Burst(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            found = super().loss(model, batch)
            if self.calls < 5:
                return found
            return type(found)(total=found.total * math.inf, samples=found.samples)

    with pytest.raises(TrainingFailed, match=r"loss is (inf|nan).*lower train\.optimizer\.lr"):
        fit(Burst(TinyConfig(train=plain())), out=tmp_path)
    state = json.loads((max((tmp_path / "checkpoints").glob("step-*")) / "state.json").read_text())
    assert state["step"] == 4


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """An update can break them while the loss before it was still a number; nothing goes on from such."""

    class Broken(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            found = super().loss(model, batch)
            if self.calls < 6:
                return found
            # A gradient that is not finite, of a loss that is.
            edge = (next(model.parameters()) * 0).sum().clamp_min(0).sqrt()
            return type(found)(total=found.total + edge, samples=found.samples)

    with pytest.raises(TrainingFailed, match=r"weight is not finite after step 6: .*lower train\.optimizer"):
        fit(Broken(TinyConfig(train=plain())), out=tmp_path)
    state = json.loads((max((tmp_path / "checkpoints").glob("step-*")) / "state.json").read_text())
    assert state["step"] == 4


def test_the_mean_of_weights_is_pictured_without_a_validation(tmp_path: Path) -> None:
    """Where nothing is judged there is no best; what is drawn is the running mean all the same."""

    class Unjudged(Tiny):
        def open_feeds(self, world: World, device: torch.device) -> Feeds:
            return Feeds(train=super().open_feeds(world, device).train)

    task = Unjudged(TinyConfig(dropout=0.0, train=plain(ema=EmaConfig(decay=0.9), picture=True)))
    fit(task, out=tmp_path)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    drawn = float((tmp_path / "picture.txt").read_text())
    for name, is_drawn in (("mean", True), ("model", False)):
        model = task.build_model().eval()
        model.load_state_dict(load_file(newest / f"{name}.safetensors"))
        assert (model(torch.ones(1, 6)).item() == drawn) is is_drawn


def test_a_picture_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    """The error says so, and the same command draws it once it can."""
    settings = TinyConfig(train=plain(epochs=1, picture=True))
    (tmp_path / "picture.txt").mkdir()
    with pytest.raises(TrainingFailed, match="is done and kept, and what it learnt cannot be drawn"):
        fit(Tiny(settings), out=tmp_path)
    (tmp_path / "picture.txt").rmdir()
    again = Tiny(settings)
    assert fit(again, out=tmp_path).pictures == (tmp_path / "picture.txt",)
    assert again.seen == []


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """By its name, with what to do."""
    (tmp_path / "result.json").mkdir()
    with pytest.raises(TrainingFailed, match=r"cannot write .*result\.json: .*Make room there"):
        fit(Tiny(TinyConfig(train=plain(epochs=1))), out=tmp_path)


def test_no_gain_ends_early(tmp_path: Path) -> None:
    """After so many validations without one, and says so."""
    settings = plain(epochs=9, stop=StopConfig(patience=2), optimizer=OptimizerConfig(name="sgd", lr=1e-12))
    told: list[str] = []
    fitted = fit(Tiny(TinyConfig(norm="layer", train=settings)), out=tmp_path, tell=told.append)
    assert (fitted.ended, fitted.step) == ("early", 3 * 7)
    assert any("no gain in 2 validations" in text for text in told)


class Measured(Tiny):
    """Its validations have these errors, one after another."""

    errors = (1.0, 0.95, 0.87, 0.86, 0.855, 0.85)

    def begin_epoch(self, epoch: int, feeds: Any) -> None:
        self.epoch = epoch

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
        metrics["mae"].update(torch.tensor([self.errors[self.epoch]]), torch.zeros(1))


def test_the_best_is_the_best_whatever_counts_as_a_gain(tmp_path: Path) -> None:
    """A small gain is kept as the best; patience counts from the last one that was large enough."""
    settings = {"save": SaveConfig(every=0), "stop": StopConfig(gain=0.1, patience=2)}
    for epochs, ended, step, best in ((2, "done", 14, 0.95), (6, "early", 35, 0.855)):
        fitted = fit(Measured(TinyConfig(train=plain(epochs=epochs, **settings))), out=tmp_path)
        # 0.87 is the first that gains 0.1 on 1.0; going on does not forget that.
        assert (fitted.ended, fitted.step) == (ended, step)
        assert fitted.best is not None
        assert fitted.best.value == pytest.approx(best)
        assert fitted.best.step == step


def test_a_folder_is_one_trainings(tmp_path: Path) -> None:
    """A second process that would train into it is told so."""
    with (
        folders.taken(tmp_path),
        pytest.raises(UsageError, match="another process trains into"),
        folders.taken(tmp_path),
    ):
        pass


_FORKS = """
import os, sys
from pathlib import Path
from stoker.train.folder import taken
with taken(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
def test_a_killed_training_leaves_its_folder_at_once(tmp_path: Path) -> None:
    """Also while readers that it had forked are still there: the same command can be given again."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as training:  # fmt: skip
        assert training.stdout is not None
        reader = int(training.stdout.readline())
        with pytest.raises(UsageError, match="another process trains into"), folders.taken(tmp_path):
            pass
        training.kill()
        training.wait()
        os.kill(reader, 0)  # it is there
        with folders.taken(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """With another way."""
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(NotPermitted, match=r"cannot train into .*file.*choose another folder with --out"),
        folders.taken(tmp_path / "file" / "a"),
    ):
        pass


@pytest.mark.parametrize("name", ["lightning", "torchmetrics", "safetensors"])
def test_what_is_not_installed_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"{name}.*pip install 'stoker\[train\]'"):
        fit(Tiny(TinyConfig()), out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_more_ranks_than_cards_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="2 ranks on this machine, and torch finds 1 CUDA"):
        open_fabric(plain(device="cuda", devices=2))


def test_a_norm_that_has_one_value_a_channel_is_told(tmp_path: Path) -> None:
    """torch's own words name neither the micro-batch nor what to do."""
    with pytest.raises(TrainingFailed, match="micro-batch of 1, and no variance"):
        fit(Tiny(TinyConfig(train=plain(micro_batch=1))), out=tmp_path)


def test_a_feed_of_another_batch_size_is_told(tmp_path: Path) -> None:
    """The trainer's batch is the feed's, or steps would be other ones than the settings say."""

    class Other(Tiny):
        def open_feeds(self, world: World, device: torch.device) -> Feeds:
            return Feeds(train=Feed(Line(), batch_size=4, device=device, workers=0))

    with pytest.raises(UsageError, match="open it with global_batch_size"):
        fit(Other(TinyConfig()), out=tmp_path)


def test_ranks_that_wait_for_each_other_in_the_forward_need_samples_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SyncBatchNorm (torch has it on cards alone) and a short last batch: refused, or it would never end."""

    class Waiting(Stepper):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.waits_in_forward = True

    monkeypatch.setattr("stoker.train.fit.Stepper", Waiting)
    with pytest.raises(UsageError, match="open it with drop_last=True"):
        fit(Tiny(TinyConfig(train=plain(epochs=1))), out=tmp_path)
    assert fit(Tiny(TinyConfig(drop_last=True, train=plain(epochs=1))), out=tmp_path).ended == "done"


def test_a_better_that_nothing_measures_is_told(tmp_path: Path) -> None:
    """With the names that there are."""

    class Other(Tiny):
        better = ("dice", "max")

    with pytest.raises(UsageError, match="judges by 'dice', and a validation has mae"):
        fit(Other(TinyConfig(train=plain(epochs=1))), out=tmp_path)


def test_a_loss_can_be_what_is_judged_by(tmp_path: Path) -> None:
    """Without metrics the validation's loss is."""

    class Plain(Tiny):
        better = ("loss", "min")

        def metrics(self) -> dict[str, Any]:
            return {}

        def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
            raise AssertionError("there is nothing to update")

    fitted = fit(Plain(TinyConfig(train=plain(epochs=1))), out=tmp_path)
    assert fitted.best is not None
    assert fitted.best.metric == "loss"
    assert fitted.metrics.keys() == {"loss", "off"}


def test_the_example_of_a_task_of_ones_own_learns(tmp_path: Path) -> None:
    """As a newcomer runs it: the error ends far below that of leaving the noise in."""
    script = Path(__file__).parents[2] / "examples" / "own_task.py"
    done = subprocess.run(
        [sys.executable, str(script), "train.loggers=[]", "train.preflight=false"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    error, noise = map(float, re.findall(r"\d+\.\d+", done.stdout))
    assert error < noise / 2
    assert json.loads((tmp_path / "runs" / "denoise" / "result.json").read_text())["ended"] == "done"


# --- its parts ------------------------------------------------------------------------------------


def test_schedules() -> None:
    """Warm-up to the full rate, then a cosine to its floor, or steps at their epochs."""
    cosine = ScheduleConfig(name="cosine", warmup=0.1, floor=0.2)
    factors = [rate_factor(cosine, step, steps=100, steps_per_epoch=10) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] == pytest.approx(0.2, abs=1e-3)
    steps = ScheduleConfig(name="step", milestones=(2, 4.5), gamma=0.5)
    found = [rate_factor(steps, step, steps=100, steps_per_epoch=10) for step in (0, 19, 20, 44, 45)]
    assert found == [1, 1, 0.5, 0.5, 0.25]
    assert rate_factor(ScheduleConfig(name="constant"), 70, steps=100, steps_per_epoch=10) == 1


def test_the_mean_of_weights() -> None:
    """Its updates, its exchange with the weights, its state: numbers that count are copied."""
    linear, norm = nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)
    model, weight, count = nn.Sequential(linear, norm), linear.weight, norm.num_batches_tracked
    assert count is not None
    nn.init.constant_(weight, 1.0)
    ema = Ema(model, EmaConfig(decay=0.5))
    with torch.no_grad():
        weight.fill_(2.0)
    count.fill_(7)
    ema.update(1)
    keep = min(0.5, 2 / 11)
    assert float(ema.state()["0.weight"]) == pytest.approx(keep * 1 + (1 - keep) * 2)
    with ema.in_place():
        assert weight.item() == pytest.approx(keep * 1 + (1 - keep) * 2)
        assert int(count) == 7
    assert weight.item() == 2.0
    again = Ema(model, EmaConfig(decay=0.5))
    again.load(ema.state(), ema.updates)
    assert torch.equal(again.state()["0.weight"], ema.state()["0.weight"])


def test_the_pace_counts_stalls_and_not_the_first_step() -> None:
    """Samples over wall time; the ETA is made of it."""
    times = iter([100.0, 101.0, 102.0, 112.0])
    pace = Pace(lambda: next(times))
    pace.add(32)
    assert (pace.samples_per_second, pace.eta(10)) == (None, None)
    for _ in range(3):
        pace.add(32)
    assert pace.samples_per_second == pytest.approx(96 / 12)
    assert pace.eta(6) == pytest.approx(24)


def test_batches_are_cut_whatever_they_are_made_of() -> None:
    """Tensors along their first dimension, names with them; what belongs to all of them stays."""
    batch = {
        "x": torch.arange(6).view(3, 2),
        "pair": (torch.arange(3), ["a", "b", "c"]),
        "scale": torch.tensor(2),
    }
    assert count_samples(batch) == 3
    cut = cut_samples(batch, 1, 3)
    assert cut["x"].tolist() == [[2, 3], [4, 5]]
    assert (cut["pair"][0].tolist(), cut["pair"][1], int(cut["scale"])) == ([1, 2], ["b", "c"], 2)
    with pytest.raises(UsageError, match="without tensors"):
        count_samples({"name": "a"})


def test_micro_batches_cover_a_share_once() -> None:
    """For every size: each sample in one of them; halving ends at one."""
    for size in range(1, 12):
        covered = [at for start, stop in spans(11, size) for at in range(start, stop)]
        assert covered == list(range(11))
    sizes, size = [], 11
    while (smaller := halve(size)) is not None:
        size = smaller
        sizes.append(size)
    assert sizes == [6, 3, 2, 1]


def test_channels_last_is_for_convolutions() -> None:
    """2D and 3D weights are laid out anew; others, and values, are as they were."""
    flat, deep = nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)
    model = nn.Sequential(flat, deep, nn.Linear(3, 4))
    before = [weight.clone() for weight in model.parameters()]
    put_channels_last(model)
    assert flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert deep.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_device_that_is_nearly_full_is_told() -> None:
    """An allocator that empties its cache once has met a new size; twice in a row, it struggles."""
    memory = DeviceMemory(torch.device("cpu"))
    assert [memory.judge(retries) is not None for retries in (0, 1, 1, 2, 5, 5)] == [
        False, False, False, False, True, False,
    ]  # fmt: skip
    told = DeviceMemory(torch.device("cpu"))
    told.judge(2)
    assert "emptied its cache 3 times" in (told.judge(5) or "")
    assert (told.peak(), told.read_warning()) == (None, None)


def test_what_is_better() -> None:
    """By more than the gain, in its direction; the first always, what is no number never."""
    assert is_better(1.0, None, "max", 0.1)
    assert is_better(1.2, 1.0, "max", 0.1)
    assert not is_better(1.05, 1.0, "max", 0.1)
    assert is_better(0.8, 1.0, "min", 0.1)
    assert not is_better(math.nan, None, "min", 0.0)
