"""Vesuvius: where the sheets of a rolled papyrus are, in volumes kept as zarr."""

from stoker.train.task import Workload
from stoker.workloads.vesuvius.config import VesuviusConfig
from stoker.workloads.vesuvius.task import VesuviusTask

WORKLOAD = Workload(
    name="vesuvius",
    about="3D segmentation of scroll volumes in zarr, by patches",
    config=VesuviusConfig,
    task=VesuviusTask,
)

__all__ = ["WORKLOAD", "VesuviusConfig", "VesuviusTask"]
