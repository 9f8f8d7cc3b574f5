"""Hosted loggers kept off the network: their own offline modes, by environment and by argument.

An argument in the script (`wandb.init(mode="online")`) wins over the environment, so the calls that
take one are given ours. TensorBoard and CSV loggers write files, which the shield keeps.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "CLEARML_OFFLINE_MODE": "1",
    "DVC_STUDIO_OFFLINE": "true",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
}


def changes() -> dict[str, Callable[[ModuleType], None]]:
    """What is done to each logger's module when the script imports it."""
    return {
        "wandb": lambda module: _give(module, "init", mode="offline"),
        "swanlab": lambda module: _give(module, "init", mode="offline"),
        "neptune": _keep_neptune_offline,
        "comet_ml": _keep_comet_offline,
        "mlflow": _keep_mlflow_local,
    }


def _give(module: ModuleType, name: str, **ours: Any) -> None:
    """Have a function of the module always called with our arguments."""
    own = getattr(module, name, None)
    if own is None:
        return

    @functools.wraps(own)
    def given(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **{**kwargs, **ours})

    setattr(module, name, given)


def _keep_neptune_offline(module: ModuleType) -> None:
    for name in ("init_run", "init_project", "init_model", "init_model_version"):
        _give(module, name, mode="offline")


def _keep_comet_offline(module: ModuleType) -> None:
    _give(module, "start", online=False)
    # The older way is a class for each mode.
    for online, offline in (
        ("Experiment", "OfflineExperiment"),
        ("ExistingExperiment", "ExistingOfflineExperiment"),
    ):
        if hasattr(module, online) and hasattr(module, offline):
            setattr(module, online, getattr(module, offline))


def _keep_mlflow_local(module: ModuleType) -> None:
    own = getattr(module, "set_tracking_uri", None)
    if own is None:
        return

    @functools.wraps(own)
    def set_tracking_uri(uri: Any, *args: Any, **kwargs: Any) -> Any:
        remote = "://" in str(uri) and not str(uri).startswith(("file:", "sqlite:"))
        remote = remote or str(uri) == "databricks"
        return own(ENVIRONMENT["MLFLOW_TRACKING_URI"] if remote else uri, *args, **kwargs)

    module.set_tracking_uri = set_tracking_uri  # type: ignore[attr-defined]
