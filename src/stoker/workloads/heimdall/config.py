"""Everything that a localisation can be told. The defaults make their own set, in SQLite."""

from dataclasses import dataclass, field

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig, ScheduleConfig, TrainConfig, check
from stoker.workloads.heimdall.locator import check_size
from stoker.workloads.heimdall.measurements import MadeRadio


def _train() -> TrainConfig:
    return TrainConfig(
        epochs=20,
        batch_size=128,
        clip=1.0,
        log_every=25,
        optimizer=OptimizerConfig(name="adamw", lr=1e-3, weight_decay=1e-4),
        schedule=ScheduleConfig(name="cosine", warmup=0.05),
    )


@dataclass(frozen=True, kw_only=True)
class HeimdallConfig:
    """A localisation."""

    # postgresql://user@host/database, sqlite:///file, or env:NAME; None: an SQLite file with the set `made`.
    database: str | None = None
    made: MadeRadio = field(default_factory=MadeRadio)
    # With a database: put the set `made` into it first, unless it is there.
    fill: bool = False
    # Of the datasets to train on; none: all that are in the database.
    dataset_ids: tuple[str, ...] = ()
    # Hold all samples in the device's memory; where they do not fit, they are held lower, and it is said why.
    preload_to_gpu: bool = True
    # What the training needs of the device beside them, in GB; None: seen in the first three steps.
    reserve_gb: float | None = None
    width: int = 64
    layers: int = 3
    heads: int = 4
    train: TrainConfig = field(default_factory=_train)

    def __post_init__(self) -> None:
        if self.fill and self.database is None:
            raise UsageError("fill is for a database of one's own: name it by database=")
        check(self, "reserve_gb", self.reserve_gb is None or self.reserve_gb >= 0, "0 or more, or left out")
        check_size(self.width, self.layers, self.heads)
