"""The reference trainer: a task in, a trained model out, on one device or several.

fitted = fit(task, out=Path("runs/sar"))
fitted.ended, fitted.step, fitted.metrics
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.train.config import TrainConfig
    from stoker.train.config_file import load
    from stoker.train.fit import Fitted
    from stoker.train.task import Feeds, Losses, Task, Workload, World

# `fit` is in the module of its name, so it is had from there: stoker.train.fit.fit.
__all__ = ["Feeds", "Fitted", "Losses", "Task", "TrainConfig", "Workload", "World", "load"]
_HOMES = {
    "Feeds": "task",
    "Fitted": "fit",
    "Losses": "task",
    "Task": "task",
    "TrainConfig": "config",
    "Workload": "task",
    "World": "task",
    "load": "config_file",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'stoker.train' has no attribute {name!r}; it offers {', '.join(__all__)}"
        )
    return getattr(import_module(f"stoker.train.{_HOMES[name]}"), name)
