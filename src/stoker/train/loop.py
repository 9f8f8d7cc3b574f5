"""The loop: epochs, steps, validation, saving. What it goes on from is all in `_state` and `restore`."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from stoker.errors import TrainingFailed, UsageError
from stoker.facts.words import ago
from stoker.train import rng
from stoker.train.checkpoint import Checkpoint, Checkpoints
from stoker.train.config import TrainConfig
from stoker.train.config_file import differences
from stoker.train.ema import Ema
from stoker.train.journal import Journal
from stoker.train.means import Means
from stoker.train.meeting import Meeting
from stoker.train.memory import DeviceMemory
from stoker.train.optimizer import load_optimizer, set_rate
from stoker.train.pace import Pace
from stoker.train.schedule import rate_factor
from stoker.train.shares import count_share
from stoker.train.signals import StopSignal
from stoker.train.step import Stepper
from stoker.train.task import Feeds, Task
from stoker.train.validation import validate

Ended = Literal["done", "early", "stopped"]
_NOTHING = {"samples": 0.0}
_SOFTER = (
    "go on from the last checkpoint with a lower train.optimizer.lr, with train.clip=1.0 or with precision "
    "bf16 or fp32"
)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best validation so far, and the checkpoint made at it."""

    metric: str
    value: float
    step: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a loop is put together from; `module` holds the weights, `model` is what is called.

    `tell` says a line to a person, on rank 0, and nothing elsewhere.
    """

    task: Task[Any]
    config: TrainConfig
    fabric: Any
    precision: Any
    module: nn.Module
    model: nn.Module
    optimizer: Any
    feeds: Feeds
    stepper: Stepper
    meeting: Meeting
    ema: Ema | None
    checkpoints: Checkpoints
    stop: StopSignal
    settings: Mapping[str, Any]
    tell: Callable[[str], None]


class Loop:
    """A training, from wherever it stands to its end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = config = parts.config
        self._device: torch.device = parts.fabric.device
        self._per_epoch = len(parts.feeds.train)
        whole = config.epochs * self._per_epoch
        self.steps = whole if config.max_steps is None else min(whole, config.max_steps)
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.best: Best | None = None
        self.pace = Pace()
        # Validations since the last one whose gain was large enough, and what that one had.
        self._stale = 0
        self._gained: float | None = None
        self._closed = 0
        # Of the epoch up to the last line of the log, and since that line.
        self._epoch_means = Means(self._device)
        self._window = Means(self._device)
        self.memory = DeviceMemory(self._device)
        self._journal: Journal | None = None

    @property
    def epoch(self) -> int:
        """The epoch that is stood in, or that comes next, counted from 0."""
        return self.step // self._per_epoch

    @property
    def is_judged(self) -> bool:
        """Whether nothing is left to do at the end of an epoch that is stood at."""
        return not self._is_epoch_end() or self._closed == self.step

    def run(self, journal: Journal | None) -> Ended:
        """Train to the end; rank 0 has a journal."""
        self._journal = journal
        self._parts.model.train()
        # To make data and to look at the device takes its time; nothing is new since the last checkpoint.
        if self._parts.meeting.any([self._parts.stop.is_heard()])[0]:
            return "stopped"
        # A training may have been told to stop before an epoch's validation, or in it.
        if not self.is_judged and not self._end_epoch():
            return "stopped"
        if self._is_exhausted():
            return "early"
        while self.step < self.steps:
            ended = self._run_epoch()
            if ended is not None:
                return ended
        return "done"

    # --- epochs and steps -------------------------------------------------------------------------

    def _run_epoch(self) -> Ended | None:
        self._parts.task.begin_epoch(self.epoch, self._parts.feeds)
        for batch in self._parts.feeds.train:
            stopped = self._make_step(batch)
            if stopped:
                self._save()
                return "stopped"
            if self._is_epoch_end():
                if not self._end_epoch():
                    return "stopped"
                if self._is_exhausted():
                    return "early"
            elif self._config.save.every and self.step % self._config.save.every == 0:
                self._save()
            if self.step >= self.steps:
                break
        return None

    def _make_step(self, batch: Any) -> bool:
        """One step; whether some rank was told to stop."""
        parts, config = self._parts, self._config
        samples, whole = count_share(parts.feeds.train, parts.task.count(batch), parts.meeting)
        factor = rate_factor(config.schedule, self.step, steps=self.steps, steps_per_epoch=self._per_epoch)
        rate = set_rate(parts.optimizer, factor)
        done = parts.stepper.run(batch, samples=samples, whole=whole, means=self._window)
        self.step += 1
        for text in done.backed_off:
            self._say(f"step {self.step}: {text}")
            self._write("memory", {"text": text, "micro_batch": parts.stepper.micro_batch})
        if parts.ema is not None:
            parts.ema.update(self.step)
        self.pace.add(whole)
        if self.step % config.log_every == 0:
            self._log(rate, None if done.gradient is None else float(done.gradient))
        return done.stop

    def _log(self, rate: float, gradient: float | None) -> None:
        losses = self._fold()
        left = self.pace.eta(self.steps - self.step)
        speed = self.pace.samples_per_second
        self._write(
            "train",
            {
                **losses,
                "epoch": self.step / self._per_epoch,
                "lr": rate,
                "gradient": gradient,
                "samples_per_second": speed,
                "eta_seconds": left,
                "micro_batch": self._parts.stepper.micro_batch,
                "tier": self._parts.feeds.train.tier,
                "peak_bytes": self.memory.peak(),
            },
        )
        told = "  ".join(f"{name} {value:.5g}" for name, value in losses.items())
        shown = "n/a" if speed is None else f"{speed:,.1f}"
        self._say(
            f"step {self.step}/{self.steps}  {told}  lr {rate:.3g}  {shown} samples/s  {ago(left)} left"
        )
        if warning := self.memory.read_warning():
            self._say(f"warning: {warning}")

    def _fold(self) -> dict[str, float]:
        """The losses since the last line, which from now on are the epoch's."""
        losses = self._read_window()
        self._epoch_means.load(_added(self._epoch_means.state(), self._window.state()))
        self._window.clear()
        return losses

    def _read_window(self) -> dict[str, float]:
        """The losses since the last line; waits for the device. TrainingFailed where one is not finite."""
        losses = self._window.read(self._parts.meeting)
        for name, value in losses.items():
            if not math.isfinite(value):
                raise TrainingFailed(f"{name} is {value} in the steps up to {self.step}: {_SOFTER}")
        return losses

    def _check_weights(self) -> None:
        """An update may break weights whose loss was a number still; nothing can go on from such."""
        named = [(name, weight) for name, weight in self._parts.module.named_parameters() if weight.numel()]
        whole = torch.stack([weight.detach().isfinite().all() for _, weight in named]).tolist()
        if not all(whole):
            name = named[whole.index(False)][0]
            raise TrainingFailed(f"{name} is not finite after step {self.step}: {_SOFTER}")

    # --- the end of an epoch ----------------------------------------------------------------------

    def _is_epoch_end(self) -> bool:
        return self.step > 0 and (self.step % self._per_epoch == 0 or self.step >= self.steps)

    def _is_exhausted(self) -> bool:
        """Whether there was no gain for so long that the training ends before its last step."""
        patience = self._config.stop.patience
        return 0 < patience <= self._stale and self.step < self.steps

    def _end_epoch(self) -> bool:
        """Judge, remember the best, save; False where a wish to stop came first, and it is yet to be done."""
        self._fold()
        losses = self._epoch_means.read(self._parts.meeting)
        ended = -(-self.step // self._per_epoch)
        told = "  ".join(f"{name} {value:.5g}" for name, value in losses.items())
        self._say(f"epoch {ended}/{self._config.epochs}  {told}")
        found = None
        if self._parts.feeds.valid is not None and (
            self.step >= self.steps or ended % self._config.validate_every == 0
        ):
            found = self._validate()
            if found is None:
                self._save()
                return False
        self._write("epoch", {**losses, "epoch": ended})
        self._epoch_means.clear()
        self._closed = self.step
        self._save(best=found is not None and self._judge(found))
        if self._is_exhausted():
            self._say(f"no gain in {self._stale} validations: the training ends here (train.stop.patience)")
        return True

    def _validate(self) -> dict[str, float] | None:
        """The validation's metrics; None where it was left, and nothing has changed by it."""
        parts = self._parts
        return validate(
            parts.task,
            feeds=parts.feeds,
            module=parts.module,
            model=parts.model,
            ema=parts.ema,
            meeting=parts.meeting,
            device=self._device,
            micro_batch=parts.stepper.micro_batch,
            is_to_stop=parts.stop.is_heard,
        )

    def _judge(self, found: dict[str, float]) -> bool:
        """Whether this is the best so far."""
        parts, self.metrics = self._parts, found
        self._write("valid", self.metrics)
        self._say("valid  " + "  ".join(f"{name} {value:.5g}" for name, value in self.metrics.items()))
        name, direction = parts.task.better
        if name not in self.metrics:
            raise UsageError(
                f"{parts.task.name} judges by {name!r}, and a validation has {', '.join(self.metrics)}"
            )
        value = self.metrics[name]
        if is_better(value, self._gained, direction, self._config.stop.gain):
            self._gained, self._stale = value, 0
        else:
            self._stale += 1
        return is_better(value, None if self.best is None else self.best.value, direction, 0.0)

    # --- what is kept -----------------------------------------------------------------------------

    def _save(self, *, best: bool = False) -> None:
        parts = self._parts
        self._read_window()  # what is not finite is not saved
        self._check_weights()
        drawn = parts.meeting.gather(rng.read(self._device).to_state())
        sums = {
            "epoch": self._epoch_means.state(parts.meeting),
            "window": self._window.state(parts.meeting),
        }
        name = parts.meeting.share(parts.checkpoints.name_for(self.step) if drawn is not None else None)
        if best:
            metric = parts.task.better[0]
            self.best = Best(metric=metric, value=self.metrics[metric], step=self.step, checkpoint=name)
        if drawn is not None:
            parts.checkpoints.save(name, self._state(drawn, sums))
            if best and self.best is not None:
                parts.checkpoints.mark_best(
                    name, step=self.step, metric=self.best.metric, value=self.best.value
                )
            parts.checkpoints.prune(None if self.best is None else self.best.checkpoint)
        parts.meeting.any([False])  # no rank goes on, or ends, before it is on the disk

    def _state(self, drawn: list[Any], sums: Mapping[str, Mapping[str, float]]) -> Checkpoint:
        parts = self._parts
        return Checkpoint(
            model=parts.module.state_dict(),
            mean=None if parts.ema is None else parts.ema.state(),
            tensors={
                "optimizer": parts.optimizer.state_dict(),
                "scaler": parts.precision.state_dict(),
                "drawn": drawn,
            },
            plain={
                "step": self.step,
                "feed": parts.feeds.train.state_dict(),
                "sums": sums,
                "metrics": self.metrics,
                "best": None if self.best is None else asdict(self.best),
                "stale": self._stale,
                "gained": self._gained,
                "closed": self._closed,
                "lowered_to": parts.stepper.lowered_to,
                "mean_updates": None if parts.ema is None else parts.ema.updates,
                "task": parts.task.name,
                "settings": parts.settings,
            },
        )

    def restore(self, kept: Checkpoint) -> None:
        """Stand where a checkpoint was made."""
        parts, plain, tensors = self._parts, kept.plain, kept.tensors
        if plain["task"] != parts.task.name:
            raise UsageError(
                f"the checkpoint is of {plain['task']}, and not of {parts.task.name}: choose another folder "
                "with --out, or begin anew with --fresh"
            )
        self._check_settings(plain["settings"])
        try:
            parts.module.load_state_dict(dict(kept.model))
        except RuntimeError as error:
            raise UsageError(
                f"the checkpoint is of another model: {error}. Give it the settings that it was made with, "
                "or begin anew with --fresh"
            ) from error
        load_optimizer(parts.optimizer, tensors["optimizer"])
        if tensors["scaler"]:  # it was trained with fp16
            parts.precision.load_state_dict(tensors["scaler"])
        if parts.ema is not None:
            if kept.mean is None:
                raise UsageError(
                    "train.ema is on, and the checkpoint has no mean of weights: turn it off, or --fresh"
                )
            parts.ema.load(kept.mean, plain["mean_updates"])
        parts.feeds.train.load_state_dict(plain["feed"])
        # Sums of all ranks, which rank 0 goes on with.
        own = plain["sums"] if parts.meeting.rank == 0 else {"epoch": _NOTHING, "window": _NOTHING}
        self._epoch_means.load(own["epoch"])
        self._window.load(own["window"])
        self.step, self._closed, self._stale = plain["step"], plain["closed"], plain["stale"]
        self.metrics = dict(plain["metrics"])
        self.best = None if plain["best"] is None else Best(**plain["best"])
        # Before it was kept, the best was what had gained last.
        self._gained = plain.get("gained", None if self.best is None else self.best.value)
        lowered = plain["lowered_to"]
        if lowered is not None and plain["settings"]["train"]["micro_batch"] == self._config.micro_batch:
            parts.stepper.lower(lowered)
            self._say(
                f"micro-batches of {lowered}, as memory allowed before (train.micro_batch changes that)"
            )
        drawn = tensors["drawn"]
        if parts.meeting.rank < len(drawn):
            rng.write(rng.Drawn.from_state(drawn[parts.meeting.rank]), self._device)
        else:  # there were fewer ranks
            rng.seed_all(self._config.seed, self.step, parts.meeting.rank)

    def _check_settings(self, before: Mapping[str, Any]) -> None:
        config, was = self._config, before["train"]
        for name, now, then in (
            ("train.batch_size", config.batch_size, was["batch_size"]),
            ("train.optimizer.name", config.optimizer.name, was["optimizer"]["name"]),
        ):
            if now != then:
                raise UsageError(
                    f"{name} is {now}, and the checkpoint was made with {then}: its steps cannot be gone on "
                    f"with; set it to {then}, or begin anew with --fresh"
                )
        changed = differences(before, self._parts.settings)
        if changed:
            self._say(f"other settings than before: {', '.join(changed)}")

    # --- what is told -----------------------------------------------------------------------------

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        if self._journal is not None:
            self._journal.write(kind, self.step, values)

    def _say(self, text: str) -> None:
        self._parts.tell(text)


def is_better(value: float, best: float | None, direction: str, gain: float) -> bool:
    """Whether a value is better than the best by more than `gain`; what is no number never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value - best > gain if direction == "max" else best - value > gain


def say_on_stderr(text: str) -> None:
    """A line for a person; stdout is for results."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}
