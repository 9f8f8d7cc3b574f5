"""How a training is run: the settings that every workload shares. `config_file` reads them from files.

@dataclass(frozen=True, kw_only=True)
class SarConfig:
    data: Path | None = None
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=20, batch_size=64))
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from stoker.errors import UsageError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
# Where samples wait: auto, or the highest to use.
Tier = Literal["auto", "vram", "spread", "window", "ram", "source"]
LOGGERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, with which numbers."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    # adamw and adam
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    # sgd
    momentum: float = 0.9
    nesterov: bool = False
    # One kernel for all weights, where the device has it (CUDA); numerically it is another order of sums.
    fused: bool = False

    def __post_init__(self) -> None:
        check(self, "lr", self.lr > 0, "above 0")
        check(self, "weight_decay", self.weight_decay >= 0, "0 or more")
        check(self, "momentum", 0 <= self.momentum < 1, "from 0 to below 1")
        check(self, "eps", self.eps > 0, "above 0")
        check(self, "betas", all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1")
        if self.nesterov and not self.momentum:
            raise UsageError("nesterov without momentum: give a momentum above 0, or leave nesterov out")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """What the learning rate does over the steps."""

    name: Literal["constant", "cosine", "step"] = "cosine"
    # Steps from 0 to the full rate; a number below 1 is a share of all steps.
    warmup: float = 0.0
    # cosine: ends at this share of the full rate.
    floor: float = 0.0
    # step: times `gamma` at each of these, in epochs.
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check(self, "warmup", self.warmup >= 0, "0 or more steps, or a share of them below 1")
        check(self, "floor", 0 <= self.floor <= 1, "a share of the full rate, 0 to 1")
        check(self, "gamma", 0 < self.gamma <= 1, "above 0, at most 1")
        rising = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        check(self, "milestones", rising and all(m > 0 for m in self.milestones), "rising epochs above 0")
        if self.name == "step" and not self.milestones:
            raise UsageError("schedule step without milestones: give the epochs, milestones = [30, 60, 80]")


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """A running mean of the weights; where it is on, it is what is judged and pictured."""

    decay: float = 0.0
    # In optimizer steps.
    every: int = 1

    def __post_init__(self) -> None:
        check(self, "decay", 0 <= self.decay < 1, "from 0 (off) to below 1")
        check(self, "every", self.every >= 1, "1 or more")


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """When to stop before the last epoch."""

    # Validations without a gain before the training ends; 0 never.
    patience: int = 0
    # What counts as one; the best checkpoint is the best by however little.
    gain: float = 0.0

    def __post_init__(self) -> None:
        check(self, "patience", self.patience >= 0, "0 (never) or more")
        check(self, "gain", self.gain >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """When the state is kept, and how much of it."""

    # In steps; 0 only at the end of epochs.
    every: int = 0
    # The newest so many; the best is kept besides.
    keep: int = 2

    def __post_init__(self) -> None:
        check(self, "every", self.every >= 0, "0 or more")
        check(self, "keep", self.keep >= 2, "2 or more: the last good one stands in for a broken newest one")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All of it."""

    epochs: int = 1
    # Ends earlier than the epochs do; None: never.
    max_steps: int | None = None
    # Samples in one optimizer step, over all ranks and micro-batches.
    batch_size: int = 32
    # Samples in one forward and backward of a rank; None: its whole share of the batch. Smaller ones are
    # accumulated. Lowered by itself, at the same batch_size, when the device runs out of memory.
    micro_batch: int | None = None
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Ranks on this machine; under torchrun its own number counts.
    devices: int = 1
    # bf16 and fp16 are autocast, with TF32 for what stays in float32; fp16 has a gradient scaler.
    precision: Precision = "fp32"
    channels_last: bool = False
    # cuDNN tries its algorithms for each new shape and keeps the fastest: for inputs of one size.
    cudnn_benchmark: bool = False
    compile: bool = False
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    # Longest gradient (norm over all weights); 0 leaves it as it is.
    clip: float = 0.0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    # Epochs between validations.
    validate_every: int = 1
    # Steps between lines of the log.
    log_every: int = 50
    loggers: tuple[str, ...] = ("tensorboard",)
    # Look at the device before the first step: who else holds it, whether the step will fit.
    preflight: bool = True
    picture: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "devices", "validate_every", "log_every"):
            check(self, name, getattr(self, name) >= 1, "1 or more")
        for name in ("max_steps", "micro_batch"):
            given = getattr(self, name)
            check(self, name, given is None or given >= 1, "1 or more, or left out")
        check(self, "seed", self.seed >= 0, "0 or more")
        check(self, "clip", self.clip >= 0, "0 (off) or more")
        if unknown := [name for name in self.loggers if name not in LOGGERS]:
            raise UsageError(f"no logger {unknown[0]!r}: there are {', '.join(LOGGERS)}")
        if self.precision == "fp16" and self.clip and self.optimizer.fused:
            raise UsageError(
                "precision fp16 with clip and optimizer.fused: a fused optimizer unscales gradients inside "
                "its step, too late to clip them; leave out one of the three"
            )


def check(config: Any, name: str, holds: bool, allowed: str) -> None:
    """UsageError with the setting's name and value where what must hold does not."""
    if not holds:
        known = {entry.name for entry in fields(config)}
        assert name in known, name
        value = getattr(config, name)
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise UsageError(f"{name} is {shown}: it must be {allowed}")
