"""The transformers callback, in real Trainers whose every phase is a nap of known length."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import BATCH, TRUTH, Items, Net, SlowSGD, loss_of
from torch import nn

from stoker.watch import Record, hooks

transformers: Any = pytest.importorskip("transformers")
TOLERANCE = 0.03
# accelerate asks for pinned memory, which torch warns of where there is no accelerator.
pytestmark = pytest.mark.filterwarnings("ignore:.*'pin_memory' argument is set as true")


class TimedItems(Items):
    """Naps for every item and says whose it is; items are dicts, as this Trainer wants them."""

    def __init__(self, length: int, phase: str = "wait") -> None:
        super().__init__(length)
        self.phase = phase

    def __getitem__(self, index: int) -> Any:
        TRUTH.nap(self.phase, self.nap)
        return {"x": torch.full((8,), float(index)), "labels": torch.zeros(1)}


class Model(nn.Module):
    """Returns its loss first, as this Trainer wants it."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.net = Net()
        self.fail_at = fail_at
        self.calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.calls == self.fail_at:
            raise RuntimeError("the loss went away")
        self.calls += 1
        out = self.net(x)
        return loss_of(out), out


class TimedSGD(SlowSGD):
    """Naps in its step, and says when the step is over."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super().step(closure)
        TRUTH.step_done()
        return loss


@pytest.fixture(autouse=True)
def fresh_truth() -> Iterator[None]:
    TRUTH.__init__()  # type: ignore[misc]
    yield


def callback_in(folder: Path, **settings: Any) -> Any:
    from stoker.watch.transformers import StokerCallback

    return StokerCallback(runs=folder / "runs", **settings)


def make_trainer(folder: Path, callback: Any, model: Model, batches: int = 24, **settings: Any) -> Any:
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        num_train_epochs=1,
        use_cpu=True,
        **{**quiet, **settings},
    )
    optimizer = TimedSGD(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    return transformers.Trainer(
        model,
        args,
        train_dataset=TimedItems(batches * BATCH),
        eval_dataset=TimedItems(4 * BATCH, "eval"),
        optimizers=(optimizer, schedule),
        callbacks=[callback],
    )


def assert_true_shares(record: Record) -> None:
    steps = list(record.ranks[0].steps())[1:]
    total = sum(step.seconds for step in steps)
    last = TRUTH._last
    for name in ("wait", "forward", "backward", "update"):
        share = sum(getattr(step, name) for step in steps) / total
        assert share == pytest.approx(last[name] / last["total"], abs=TOLERANCE), (name, last)


@pytest.mark.quiet
def test_shares_are_true(tmp_path: Path) -> None:
    """A plain training: every phase as it was slept, every step with its samples."""
    callback = callback_in(tmp_path)
    make_trainer(tmp_path, callback, Model()).train()
    record = callback.record
    assert_true_shares(record)
    about = record.ranks[0].about
    assert (about["steps"], about["outcome"], record.about["total_steps"]) == (24, "done", 24)
    assert sum(step.samples or 0 for step in record.ranks[0].steps()) == 24 * BATCH


@pytest.mark.quiet
def test_evaluation_inside_training_is_not_waiting(tmp_path: Path) -> None:
    """An evaluation every 8 steps costs `other`; its loader is known not to train."""
    callback = callback_in(tmp_path)
    make_trainer(tmp_path, callback, Model(), eval_strategy="steps", eval_steps=8).train()
    assert_true_shares(callback.record)
    loaders = callback.record.ranks[0].about["loaders"]
    assert [loader["trains"] for loader in loaders] == [True, False, False, False]  # a new one each time


@pytest.mark.quiet
def test_accumulation_makes_one_step_of_several_batches(tmp_path: Path) -> None:
    """With gradient_accumulation_steps=3 there are 8 steps, and their shares are true."""
    callback = callback_in(tmp_path)
    make_trainer(tmp_path, callback, Model(), gradient_accumulation_steps=3).train()
    assert_true_shares(callback.record)
    assert callback.record.ranks[0].about["steps"] == callback.record.about["total_steps"] == 8


def test_an_exception_in_mid_epoch_completes_the_record_as_failed(tmp_path: Path) -> None:
    """The error reaches the caller, the record says `failed` with its text, and the hooks are gone."""
    callback = callback_in(tmp_path)
    with pytest.raises(RuntimeError, match="the loss went away"):
        make_trainer(tmp_path, callback, Model(fail_at=5)).train()
    about = callback.record.ranks[0].about
    assert (about["outcome"], about["error"]) == ("failed", "RuntimeError: the loss went away")
    assert about["steps"] == 5
    assert hooks.active() is None


def test_after_a_resume_only_the_remaining_steps_are_expected(tmp_path: Path) -> None:
    """Resumed at step 10 of 24, the run has 14 to go, and its steps are counted on from 10."""
    make_trainer(tmp_path, callback_in(tmp_path), Model(), save_strategy="steps", save_steps=10).train()
    resumed = callback_in(tmp_path)
    left: list[float] = []

    class Probe(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            left.append(resumed._watch.session.account.remaining_steps())

    trainer = make_trainer(tmp_path, resumed, Model())
    trainer.add_callback(Probe())
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-10"))
    about = resumed.record.about
    assert left[0] == 14
    assert (about["total_steps"], about["steps_before"]) == (14, 10)
    assert len(list(resumed.record.ranks[0].steps())) == 14


def test_figures_are_in_what_the_trainer_logs(tmp_path: Path) -> None:
    """Reporters, which come before a user's callbacks, see the shares and rates beside the loss."""
    seen: list[dict[str, float]] = []

    class Reporter(transformers.TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    trainer = make_trainer(tmp_path, Reporter(), Model(), logging_strategy="steps", logging_steps=8)
    trainer.add_callback(callback_in(tmp_path))
    trainer.train()
    losses = [logs for logs in seen if "loss" in logs]
    assert len(losses) == 3
    assert {"stoker/wait", "stoker/sustained_steps_per_s", "stoker/eta_s"} <= set(losses[-1])
    assert not any(name.startswith("stoker/") for logs in seen if "loss" not in logs for name in logs)


def test_without_transformers_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the adapter where transformers is absent says what to install."""
    import importlib
    import sys

    from stoker.errors import MissingExtra

    monkeypatch.delitem(sys.modules, "stoker.watch.transformers", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"stoker\[transformers\]"):
        importlib.import_module("stoker.watch.transformers")
