"""SAR autoencoders: patches of radar images in `.npy` shards, rebuilt from small codes."""

from pathlib import Path

from stoker.train.task import Workload
from stoker.workloads.sar.config import SarConfig
from stoker.workloads.sar.task import SarTask


def _compare(config: SarConfig, folder: Path, fresh: bool) -> Path:
    from stoker.workloads.sar.comparison import compare  # which brings the trainer

    return compare(config, folder, fresh=fresh)


WORKLOAD = Workload(
    name="sar",
    about="autoencoders for radar patches in .npy shards",
    config=SarConfig,
    task=SarTask,
    compare=_compare,
)

__all__ = ["WORKLOAD", "SarConfig", "SarTask"]
