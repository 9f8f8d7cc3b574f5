"""Everything that a SAR training can be told. The defaults make their own data and suit a CPU."""

from dataclasses import dataclass, field

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig, ScheduleConfig, Tier, TrainConfig, check
from stoker.workloads.sar.models import ModelName
from stoker.workloads.sar.scenes import LOOKS

# A ship and its surroundings.
_LEAST_SIDE = 16


@dataclass(frozen=True, kw_only=True)
class MadeConfig:
    """The set that is made where none is given."""

    samples: int = 640
    files: int = 5
    # Of a patch, in pixels; the real set's have 256.
    side: int = 128
    looks: int = LOOKS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "files", "side", "looks"):
            if getattr(self, name) < 1:
                raise UsageError(f"made.{name} is {getattr(self, name)}: it must be 1 or more")
        if self.side < _LEAST_SIDE:
            raise UsageError(f"made.side is {self.side}: it must be {_LEAST_SIDE} or more")
        if self.seed < 0:
            raise UsageError(f"made.seed is {self.seed}: it must be 0 or more")

    @property
    def name(self) -> str:
        """A folder's name that tells all of them."""
        return f"sar_{self.samples}x{self.side}px_{self.files}files_{self.looks}looks_seed{self.seed}"


def _train() -> TrainConfig:
    return TrainConfig(
        epochs=4,
        batch_size=16,
        clip=1.0,
        log_every=10,
        optimizer=OptimizerConfig(name="adamw", lr=1e-3, weight_decay=1e-4),
        schedule=ScheduleConfig(name="cosine", warmup=0.05),
    )


@dataclass(frozen=True, kw_only=True)
class SarConfig:
    """A SAR training."""

    # A folder of .npy shards; None: the set described by `made`, made on first use.
    data: str | None = None
    pattern: str = "*.npy"
    made: MadeConfig = field(default_factory=MadeConfig)
    # What the shards' values of 0 and 1 are: others are scaled to these on the device.
    low: float = 0.0
    high: float = 1.0
    # Of all samples, those to train on; the rest is to validate on.
    train_share: float = 0.9
    split_seed: int = 0
    # Of those to train on, the share that takes part, by the seed of the training.
    subset: float = 1.0
    model: ModelName = "residual"
    # The note's base is 32, at which `residual` has 5.99 M parameters.
    base: int = 16
    latent: int = 16
    # Weights of the loss's parts.
    mse: float = 0.7
    ssim: float = 0.3
    # Where samples wait: auto, or the highest to use of vram, spread, window, ram and source.
    tier: Tier = "auto"
    train: TrainConfig = field(default_factory=_train)

    def __post_init__(self) -> None:
        if not 0 < self.subset <= 1:
            raise UsageError(f"subset is {self.subset:g}: give the share that takes part, above 0 to 1")
        check(self, "train_share", 0 < self.train_share < 1, "above 0 and below 1")
        check(self, "split_seed", self.split_seed >= 0, "0 or more")
        for name in ("base", "latent"):
            check(self, name, getattr(self, name) >= 1, "1 or more")
        if not self.low < self.high:
            raise UsageError(f"low is {self.low:g} and high is {self.high:g}: low must be below high")
