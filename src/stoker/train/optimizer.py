"""The optimizer that a config asks for."""

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig
from stoker.train.task import Task


def build_optimizer(task: Task[Any], model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Over the task's groups of weights; each keeps its full rate as `initial_lr`."""
    groups = list(task.group_parameters(model))
    if not any(group["params"] for group in groups):
        raise UsageError(f"the model of {task.name} has no weights to train: give it some with requires_grad")
    device = next(model.parameters()).device
    if config.fused and device.type != "cuda":
        raise UsageError(f"train.optimizer.fused on {device.type}: it is for CUDA; leave it out")
    # None leaves the choice to torch: one pass over all weights on a card.
    fused = True if config.fused else None
    optimizer: Optimizer
    if config.name == "sgd":
        optimizer = SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            fused=fused,
        )
    else:
        kind: type[Adam] = AdamW if config.name == "adamw" else Adam
        optimizer = kind(
            groups,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=fused,
        )
    for group in optimizer.param_groups:
        group["initial_lr"] = float(group["lr"])
    return optimizer


def load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """An optimizer's kept states, under the settings that it has now: a rate may be changed for a resume."""
    settings = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        raise UsageError(
            f"the checkpoint's optimizer has other groups of weights: {error}. Give it the settings that it "
            "was made with, or begin anew with --fresh"
        ) from error
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def set_rate(optimizer: Optimizer, factor: float) -> float:
    """Each group at its share of its full rate; that of the first group."""
    for group in optimizer.param_groups:
        wanted = group["initial_lr"] * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(wanted)
        else:
            group["lr"] = wanted
    return float(optimizer.param_groups[0]["lr"])
