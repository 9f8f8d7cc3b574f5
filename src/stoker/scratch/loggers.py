"""Hosted loggers kept off the network: their own offline modes, by environment and by argument.

An argument in the script (`wandb.init(mode="online")`) wins over the environment, so the calls that
take one are given ours. TensorBoard and CSV loggers write files, which the shield keeps.
"""

import functools
import os
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

# Servers that MLflow has names for.
_MLFLOW_SERVICES = ("databricks", "databricks-uc")


def changes() -> dict[str, Callable[[ModuleType], None]]:
    """What is done to each logger's module when the script imports it."""
    return {
        "wandb": lambda module: _give(module, "init", mode="offline"),
        "swanlab": lambda module: _give(module, "init", mode="offline"),
        "neptune": _keep_neptune_offline,
        "comet_ml": _keep_comet_offline,
        "mlflow": _keep_mlflow_local,
        "mlflow.tracking.client": _keep_mlflow_clients_local,
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
    """Have addresses that the script sets be local ones."""
    for name in ("set_tracking_uri", "set_registry_uri"):
        if hasattr(module, name):
            setattr(module, name, _with_local_addresses(getattr(module, name)))


def _keep_mlflow_clients_local(module: ModuleType) -> None:
    """The same for clients, which take addresses of their own: Lightning's logger makes one so.

    The class itself is changed, whatever name it is had by. Tried against a stand-in of MLflow's shape.
    """
    kind = getattr(module, "MlflowClient", None)
    if kind is not None:
        kind.__init__ = _with_local_addresses(kind.__init__)


def _with_local_addresses(own: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, with a local store for each server among its arguments."""

    @functools.wraps(own)
    def local(*args: Any, **kwargs: Any) -> Any:
        given = {name: _local(value) for name, value in kwargs.items()}
        return own(*(_local(value) for value in args), **given)

    return local


def _local(value: Any) -> Any:
    """A local store, where it is the address of a server; as it is, where it is anything else."""
    if not isinstance(value, str | os.PathLike):
        return value
    uri = os.fspath(value)
    remote = "://" in uri and not uri.startswith(("file:", "sqlite:"))
    return ENVIRONMENT["MLFLOW_TRACKING_URI"] if remote or uri in _MLFLOW_SERVICES else value
