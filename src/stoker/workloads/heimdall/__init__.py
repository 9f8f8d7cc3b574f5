"""Heimdall: where a transmitter is, from what up to seven receivers measured, kept in a database."""

from stoker.train.task import Workload
from stoker.workloads.heimdall.config import HeimdallConfig
from stoker.workloads.heimdall.task import HeimdallTask

WORKLOAD = Workload(
    name="heimdall",
    about="localisation of transmitters from measurements in PostgreSQL or SQLite",
    config=HeimdallConfig,
    task=HeimdallTask,
)

__all__ = ["WORKLOAD", "HeimdallConfig", "HeimdallTask"]
