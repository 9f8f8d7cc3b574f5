"""Everything that a segmentation can be told. The defaults make their own scrolls, small enough for a CPU."""

from dataclasses import dataclass, field, replace

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig, ScheduleConfig, TrainConfig, check
from stoker.workloads.vesuvius.inference import check_overlap
from stoker.workloads.vesuvius.residence import HOMES, Asked
from stoker.workloads.vesuvius.scrolls import MadeScrolls


class _LeftOut(int):
    """A `train.batch_size` that nobody gave: it follows from two settings of the workload.

    A number of its own kind, since any number can be asked for.
    """


_LEFT_OUT = _LeftOut(1)


def _train() -> TrainConfig:
    return TrainConfig(
        epochs=4,
        batch_size=_LEFT_OUT,
        clip=12.0,
        log_every=5,
        optimizer=OptimizerConfig(name="adamw", lr=2e-3, weight_decay=1e-4),
        schedule=ScheduleConfig(name="cosine", warmup=0.05),
    )


@dataclass(frozen=True, kw_only=True)
class VesuviusConfig:
    """A segmentation of scrolls.

    The note's training is `patch=[72, 136, 136] widths=[32, 64, 128, 256] samples_per_epoch=4000`.
    """

    # A folder with volumes/NAME.zarr and labels/NAME.zarr; None: the scrolls of `made`, made on first use.
    data: str | None = None
    made: MadeScrolls = field(default_factory=lambda: MadeScrolls(volumes=3, shape=(64, 128, 128)))
    # Names of the volumes to validate on; none: the last one.
    valid: tuple[str, ...] = ()
    # Depth, height and width, each a multiple of 2 for every width but the first.
    patch: tuple[int, int, int] = (32, 48, 48)
    samples_per_epoch: int = 64
    # Of the patches to train on, the share that is centred on a voxel of a sheet.
    foreground: float = 0.33
    # The chance of a mirroring along each axis.
    flip: float = 0.5
    # Of values from 0 to 1.
    mean: float = 0.33
    std: float = 0.17
    # Channels of each level; the note's patches are made for (32, 64, 128, 256).
    widths: tuple[int, ...] = (8, 16, 32)
    deep_supervision: bool = True
    # Weights of the loss's parts.
    dice: float = 1.0
    entropy: float = 1.0
    # Patches in one forward and backward. What one optimizer step takes, `train.batch_size`, is that many
    # times `accumulate_steps`, over all ranks.
    train_batch_size: int = 2
    accumulate_steps: int = 1
    # Processes that read patches where the volumes are on disk; 0: threads.
    workers: int = 0
    # Where the volumes are: auto, or the highest to use of vram, ram and disk.
    resident: Asked = "auto"
    # What the training needs of the device, in GB; None: one step is made to see.
    reserve_gb: float | None = None
    # Of the sliding window, the share that the next one has too.
    overlap: float = 0.5
    # At the end, write the chance of a sheet in the whole of each volume kept apart, as zarr.
    predict: bool = False
    # Of the surface Dice, in voxels.
    tolerance: float = 2.0
    # A chance above it is a sheet.
    threshold: float = 0.5
    train: TrainConfig = field(default_factory=_train)

    def __post_init__(self) -> None:
        for name in ("train_batch_size", "accumulate_steps", "samples_per_epoch"):
            check(self, name, getattr(self, name) >= 1, "1 or more")
        for name in ("workers", "tolerance", "dice", "entropy"):
            check(self, name, getattr(self, name) >= 0, "0 or more")
        for name in ("foreground", "flip"):
            check(self, name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        check(self, "std", self.std > 0, "above 0")
        if not 0 < self.threshold < 1:
            raise UsageError(f"threshold is {self.threshold:g}: it is a chance, above 0 and below 1")
        check(self, "reserve_gb", self.reserve_gb is None or self.reserve_gb >= 0, "0 or more, or left out")
        check(self, "widths", min(self.widths, default=0) >= 1, "one number or more, each 1 or more")
        check_overlap(self.overlap)
        if self.resident not in HOMES:
            raise UsageError(f"resident is {self.resident!r}: take one of {', '.join(HOMES)}")
        if self.dice + self.entropy == 0:
            raise UsageError("dice and entropy are both 0: give the loss a weight above 0")
        if self.train.batch_size != self._step and not isinstance(self.train.batch_size, _LeftOut):
            raise UsageError(
                f"train.batch_size is {self.train.batch_size}, but train_batch_size x accumulate_steps is "
                f"{self.train_batch_size} x {self.accumulate_steps}: leave train.batch_size out"
            )
        divisor = 2 ** (len(self.widths) - 1)
        if len(self.patch) != 3 or any(side < 1 or side % divisor for side in self.patch):
            raise UsageError(
                f"patch is {self.patch} with {len(self.widths)} widths: each side must be a multiple of "
                f"{divisor}; take another patch, or fewer widths"
            )

    def settle(self) -> "VesuviusConfig":
        """The same with the trainer's own names for the batch set as the workload's say."""
        micro = self.train.micro_batch or self.train_batch_size
        return replace(self, train=replace(self.train, batch_size=self._step, micro_batch=micro))

    @property
    def _step(self) -> int:
        """Patches of one optimizer step."""
        return self.train_batch_size * self.accumulate_steps
