"""The Lightning callback, in real Trainers whose every phase is a nap of known length."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import BATCH, TRUTH, Items, Net, SlowSGD, loss_of
from torch import nn
from torch.utils.data import DataLoader

from stoker.watch import Record

# Lightning's advice to use workers and to log, which these trainings do without on purpose, and a name that
# it takes from torch and torch has renamed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*number of training batches .* is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]

lightning: Any = pytest.importorskip("lightning.pytorch")
TOLERANCE = 0.03


class TimedItems(Items):
    """Naps for every item, and says so."""

    def __getitem__(self, index: int) -> torch.Tensor:
        TRUTH.nap("wait" if torch.is_grad_enabled() else "eval", self.nap)
        return torch.full((8,), float(index))


class TimedSGD(SlowSGD):
    """Naps in its step, after the closure as an update does, and says when the step is over."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super().step(closure)
        TRUTH.step_done()
        return loss


class Lit(lightning.LightningModule):  # type: ignore[misc]
    """`call` says how training_step reaches the network: by itself, by a child, or through a list."""

    def __init__(self, call: str = "child", batches: int = 24, fail_at: int | None = None) -> None:
        super().__init__()
        self.net = Net()
        self.parts = nn.ModuleList([self.net]) if call == "list" else None
        self.call, self.batches, self.fail_at = call, batches, fail_at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fail_at:
            raise RuntimeError("the loss went away")
        TRUTH.nap("other", 0.006)
        called: nn.Module = self if self.call == "self" else self.net
        return loss_of(called(batch))

    def configure_optimizers(self) -> TimedSGD:
        return TimedSGD(self.net.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(TimedItems(self.batches * BATCH), batch_size=BATCH)


@pytest.fixture(autouse=True)
def fresh_truth() -> Iterator[None]:
    TRUTH.__init__()  # type: ignore[misc]
    yield


def make_trainer(package: Any, callback: Any, **settings: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"max_epochs": 1, "logger": False, "accelerator": "cpu", "devices": 1, **quiet, **settings}
    return package.Trainer(callbacks=[callback], **settings)


def callback_in(folder: Path | str, **settings: Any) -> Any:
    from stoker.watch.lightning import StokerCallback

    return StokerCallback(runs=folder, **settings)


def shares_of(record: Record, rank: int = 0) -> dict[str, float]:
    """Shares over the steps after the first, by the record alone."""
    steps = list(record.ranks[rank].steps())[1:]
    total = sum(step.seconds for step in steps)
    names = ("wait", "forward", "backward", "update")
    return {name: sum(getattr(step, name) for step in steps) / total for name in names}


def assert_true_shares(record: Record, rank: int = 0, truth: dict[str, float] | None = None) -> None:
    last = truth or TRUTH._last
    for name, share in shares_of(record, rank).items():
        if name == "backward" and len(record.ranks) > 1:  # in it a rank waits for the others
            assert share > last[name] / last["total"] - TOLERANCE
            continue
        assert share == pytest.approx(last[name] / last["total"], abs=TOLERANCE), (name, last)


@pytest.mark.quiet
@pytest.mark.parametrize("call", ["self", "child", "list"])
def test_shares_are_true_however_training_step_calls_the_network(call: str, tmp_path: Path) -> None:
    """self(x), self.net(x) and a network in a ModuleList give the same, true shares from the first step."""
    callback = callback_in(tmp_path)
    make_trainer(lightning, callback).fit(Lit(call))
    record = callback.record
    assert_true_shares(record)
    assert TRUTH.steps == record.ranks[0].about["steps"] == 24
    assert all(step.samples == BATCH for step in record.ranks[0].steps())
    assert all(step.forward > 0 for step in record.ranks[0].steps())
    assert record.ranks[0].about["outcome"] == "done"


@pytest.mark.quiet
def test_training_step_s_own_time_is_other_not_update(tmp_path: Path) -> None:
    """What the closure does beside forward and backward is not booked on the optimizer."""
    callback = callback_in(tmp_path)
    make_trainer(lightning, callback).fit(Lit())
    steps = list(callback.record.ranks[0].steps())[1:]
    total = sum(step.seconds for step in steps)
    assert sum(step.other for step in steps) / total > TRUTH._last["other"] / TRUTH._last["total"] - TOLERANCE


@pytest.mark.quiet
def test_validation_inside_training_is_not_waiting(tmp_path: Path) -> None:
    """A validation loop within the epoch costs `other`; its loader's waits are not the training's."""

    class Validated(Lit):
        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.net(batch)

    callback = callback_in(tmp_path)
    validation = DataLoader(TimedItems(4 * BATCH), batch_size=BATCH)
    make_trainer(lightning, callback, val_check_interval=8, num_sanity_val_steps=2).fit(
        Validated(), val_dataloaders=validation
    )
    record = callback.record
    assert_true_shares(record)
    trains = {loader["id"]: loader["trains"] for loader in record.ranks[0].about["loaders"]}
    assert sorted(trains.values()) == [False, True]


@pytest.mark.quiet
def test_accumulation_makes_one_step_of_several_batches(tmp_path: Path) -> None:
    """With accumulate_grad_batches=3 a step holds three batches, and its shares are true."""
    callback = callback_in(tmp_path)
    make_trainer(lightning, callback, accumulate_grad_batches=3).fit(Lit())
    record = callback.record
    assert_true_shares(record)
    assert [step.samples for step in record.ranks[0].steps()] == [3 * BATCH] * 8
    assert record.about["total_steps"] == 8


def test_an_exception_in_mid_epoch_completes_the_record_as_failed(tmp_path: Path) -> None:
    """The error reaches the caller, the outcome is `failed` with its text, and the hooks are gone."""
    from stoker.watch import hooks

    callback = callback_in(tmp_path)
    with pytest.raises(RuntimeError, match="the loss went away"):
        make_trainer(lightning, callback).fit(Lit(fail_at=5))
    about = callback.record.ranks[0].about
    assert (about["outcome"], about["error"]) == ("failed", "RuntimeError: the loss went away")
    assert 5 == about["steps"] == len(list(callback.record.ranks[0].steps()))
    assert hooks.active() is None


def test_an_interrupt_is_told_apart_from_a_failure(tmp_path: Path) -> None:
    """Ctrl-C, which Lightning turns into an exit, leaves the outcome `interrupted`."""
    import signal

    class Interrupted(Lit):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if batch_idx == 3:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    callback = callback_in(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            make_trainer(lightning, callback).fit(Interrupted())
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning ignores it from then on
    assert callback.record.ranks[0].about["outcome"] == "interrupted"


# True, and of no matter here: which batches come again is not asked.
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_after_a_resume_only_the_remaining_steps_are_expected(tmp_path: Path) -> None:
    """Resumed at step 10 of 24, the run has 14 to go, and its steps are counted on from 10."""
    first, resumed = callback_in(tmp_path), callback_in(tmp_path)
    checkpoint = tmp_path / "at10.ckpt"
    left: list[float] = []

    class Saver(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 10:
                trainer.save_checkpoint(checkpoint)

    class Probe(lightning.Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            left.append(resumed._watch.session.account.remaining_steps())

    trainer = make_trainer(lightning, first, max_steps=12)
    trainer.callbacks.append(Saver())
    trainer.fit(Lit())

    trainer = make_trainer(lightning, resumed)
    trainer.callbacks.append(Probe())
    trainer.fit(Lit(), ckpt_path=checkpoint, weights_only=False)
    about = resumed.record.about
    assert left == [14]
    assert (about["total_steps"], about["steps_before"]) == (14, 10)
    assert len(list(resumed.record.ranks[0].steps())) == 14
    assert (first.record.about["total_steps"], first.record.about["steps_before"]) == (12, 0)


def test_figures_go_to_the_trainer_s_loggers(tmp_path: Path) -> None:
    """Every N steps the shares and rates are logged, at Lightning's own logging steps; none is None."""
    from lightning.pytorch.loggers.logger import DummyLogger

    class Kept(DummyLogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[tuple[int, dict[str, float]]] = []

        def log_metrics(self, metrics: Any, step: int) -> None:
            if any(name.startswith("stoker/") for name in metrics):
                self.lines.append((step, metrics))

    logger = Kept()
    make_trainer(lightning, callback_in(tmp_path, every_n_steps=8), logger=logger).fit(Lit(batches=32))
    assert [step for step, _ in logger.lines] == [7, 15, 23, 31]
    last = logger.lines[-1][1]
    assert {"stoker/wait", "stoker/sustained_steps_per_s", "stoker/eta_s"} <= set(last)
    assert all(isinstance(value, float) for value in last.values())


@pytest.mark.quiet
def test_two_optimizers_make_one_step_a_batch(tmp_path: Path) -> None:
    """Manual optimization with two networks: both forwards count, and the ETA counts batches."""

    class Gan(Lit):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.critic = Net()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            critic, made = self.optimizers()
            for optimizer, net in ((critic, self.critic), (made, self.net)):
                optimizer.zero_grad()
                self.manual_backward(loss_of(net(batch)))
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [SlowSGD(self.critic.parameters(), lr=1e-4), TimedSGD(self.net.parameters(), lr=1e-4)]

    callback = callback_in(tmp_path)
    make_trainer(lightning, callback).fit(Gan())
    record = callback.record
    assert 24 == record.about["total_steps"] == record.ranks[0].about["steps"]
    assert_true_shares(record)


# Dynamo asks a tensor for its gradient on the way back into a frame that it has left.
@pytest.mark.quiet
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_module_has_its_training_step_as_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler hides is timed from outside, and the trainer is left as it was."""
    # Stopwatches cannot be compiled.
    monkeypatch.setattr(TRUTH, "nap", torch.compiler.disable(TRUTH.nap))
    monkeypatch.setattr(Net, "forward", torch.compiler.disable(Net.forward))
    callback = callback_in(tmp_path)
    trainer = make_trainer(lightning, callback)
    whole = type(trainer.strategy).training_step

    def stopwatched(*args: Any) -> Any:
        began = time.perf_counter()
        loss = whole(*args)
        TRUTH.spent["training_step"] += time.perf_counter() - began
        return loss

    monkeypatch.setattr(type(trainer.strategy), "training_step", stopwatched)
    trainer.fit(torch.compile(Lit(), backend="eager"))
    truth = TRUTH._last["training_step"] / TRUTH._last["total"]
    assert shares_of(callback.record)["forward"] == pytest.approx(truth, abs=TOLERANCE)
    assert "training_step" not in vars(trainer.strategy)


def test_a_trainer_of_the_other_package_takes_the_callback(tmp_path: Path) -> None:
    """pytorch_lightning's Trainer calls the hooks of a callback made for lightning.pytorch."""
    other: Any = pytest.importorskip("pytorch_lightning")

    class Plain(other.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(0.0)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return loss_of(self.net(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=1e-4)

    callback = callback_in(tmp_path)
    make_trainer(other, callback).fit(Plain(), DataLoader(Items(8 * BATCH, 0.0), batch_size=BATCH))
    assert callback.record.ranks[0].about["steps"] == 8
    assert callback.record.ranks[0].about["outcome"] == "done"


@pytest.mark.quiet
def test_ranks_that_lightning_starts_share_a_record(tmp_path: Path) -> None:
    """With strategy="ddp" each rank has its part of one record, with true shares."""
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from kit import TRUTH\n"
        "from test_lightning import Lit, callback_in, lightning, make_trainer\n"
        "if __name__ == '__main__':\n"
        "    trainer = make_trainer(lightning, callback_in('runs'), devices=2, strategy='ddp')\n"
        "    trainer.fit(Lit(batches=32))\n"
        "    Path(f'truth{trainer.global_rank}.json').write_text(json.dumps(TRUTH._last))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    record = Record.open(next((tmp_path / "runs").iterdir()))
    assert (record.about["world_size"], sorted(record.ranks)) == (2, [0, 1])
    for rank, part in record.ranks.items():
        truth = json.loads((tmp_path / f"truth{rank}.json").read_text())
        assert part.about["steps"] == 16
        assert_true_shares(record, rank, truth)


def test_under_a_run_that_is_observed_already_the_callback_joins_it(tmp_path: Path) -> None:
    """Inside `stoker run` there is one record, and the end of fit does not end it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import lightning as L\n"
        "from torch.utils.data import DataLoader\n"
        "from kit import Items, Net, loss_of, SlowSGD\n"
        "from stoker.watch.lightning import StokerCallback\n"
        "class Lit(L.LightningModule):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.net = Net(0.0)\n"
        "    def training_step(self, batch, _): return loss_of(self.net(batch))\n"
        "    def configure_optimizers(self): return SlowSGD(self.net.parameters(), lr=1e-4)\n"
        "L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,\n"
        "    accelerator='cpu', callbacks=[StokerCallback()]\n"
        ").fit(Lit(), DataLoader(Items(48), batch_size=4))\n"
    )
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "stoker", "run", "--quiet", "--runs", str(runs), str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(list(runs.iterdir())) == 1
    record = Record.open("latest", root=runs)
    assert 12 == record.ranks[0].about["steps"] == record.about["total_steps"]
    assert not (tmp_path / ".stoker").exists()


def test_without_lightning_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the adapter where Lightning is absent says what to install."""
    import importlib

    from stoker.errors import MissingExtra

    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "stoker.watch.lightning", raising=False)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if "lightning" in name else real(name, *a)
    )
    with pytest.raises(MissingExtra, match=r"stoker\[lightning\]"):
        importlib.import_module("stoker.watch.lightning")
