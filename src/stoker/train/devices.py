"""Fabric as the config asks for it: device, precision, ranks."""

import inspect
import os
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import MissingExtra, UsageError
from stoker.train.config import TrainConfig
from stoker.train.precision import plugin_for


def open_fabric(config: TrainConfig) -> Any:
    """Fabric, launched: under torchrun with its ranks, else with `config.devices` of them on this machine."""
    # All at once, before anything is made: the last of them is needed when the first checkpoint is saved.
    for name in ("lightning", "torchmetrics", "safetensors"):
        if find_spec(name) is None:
            raise MissingExtra(name, "train", "Training")
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    kind = _kind(config)
    devices, nodes = _ranks(config)
    if kind == "cuda" and devices > (cards := torch.cuda.device_count()):
        raise UsageError(
            f"{devices} ranks on this machine, and torch finds {cards} CUDA devices: one each, so set "
            "train.devices (or torchrun's --nproc-per-node) to no more than that"
        )
    if config.batch_size % (devices * nodes):
        raise UsageError(
            f"train.batch_size is {config.batch_size} over {devices * nodes} ranks: it must be a multiple"
        )
    strategy = DDPStrategy(**_without_forward_sync()) if devices * nodes > 1 else "auto"
    fabric = Fabric(
        accelerator=kind,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        plugins=[plugin_for(config.precision, kind)],
    )
    fabric.launch()
    return fabric


def _without_forward_sync() -> dict[str, bool]:
    """Buffers are shared before they are judged, not in the forward.

    There, a rank that ran out of memory and begins again would be one exchange ahead of the others.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    # torch 2.13 has a new name for it, and warns of the old one.
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def _kind(config: TrainConfig) -> str:
    there = torch.cuda.is_available()
    if config.device == "auto":
        return "cuda" if there else "cpu"
    if config.device == "cuda" and not there:
        raise UsageError(
            "train.device is cuda, but torch finds no CUDA device here: use cpu, or leave it out"
        )
    return config.device


def is_launched() -> bool:
    """Whether torchrun, or what stands in for it, has started the ranks; else the trainer does."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def count_ranks(config: TrainConfig) -> int:
    """All that there will be."""
    devices, nodes = _ranks(config)
    return devices * nodes


def _ranks(config: TrainConfig) -> tuple[int, int]:
    """Ranks on this machine, and machines."""
    if not is_launched():
        return config.devices, 1
    here, all_ranks = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return here, all_ranks // here
