"""The four reference systems, end to end: data in the real set's layout, a model, a config, a task.

Each package offers `WORKLOAD`, a `stoker.train.task.Workload`; the names load when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from stoker.errors import UsageError

if TYPE_CHECKING:
    from stoker.train.task import Workload

NAMES = ("heimdall", "imagenet", "sar", "vesuvius")

__all__ = ["NAMES", "find"]


def find(name: str) -> "Workload":
    """A workload by its name."""
    if name not in NAMES:
        raise UsageError(f"no workload {name!r}: there are {', '.join(NAMES)}")
    found: Workload = import_module(f"stoker.workloads.{name}").WORKLOAD
    return found
