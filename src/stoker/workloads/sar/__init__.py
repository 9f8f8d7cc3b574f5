"""SAR autoencoders: patches of radar images in `.npy` shards, rebuilt from small codes."""

from stoker.train.task import Workload
from stoker.workloads.sar.config import SarConfig
from stoker.workloads.sar.task import SarTask

WORKLOAD = Workload(
    name="sar",
    about="autoencoders for radar patches in .npy shards",
    config=SarConfig,
    task=SarTask,
)

__all__ = ["WORKLOAD", "SarConfig", "SarTask"]
