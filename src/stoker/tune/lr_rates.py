"""An optimizer's learning rates moved together, their ratios kept."""

from typing import Any

import torch
from torch.optim import Optimizer


class Rates:
    """The rates of an optimizer's groups, as ratios to the first that is not 0.

    By `initial_lr` where a scheduler has noted one: a warm-up may have begun at 0.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._groups: list[dict[str, Any]] = optimizer.param_groups
        given = [float(group.get("initial_lr", group["lr"])) for group in self._groups]
        base = next((lr for lr in given if lr), 1.0)
        self.ratios = tuple(lr / base for lr in given) if any(given) else (1.0,) * len(given)

    def set(self, lr: float) -> None:
        """Of the first to this, of the others by their ratios."""
        for group, ratio in zip(self._groups, self.ratios, strict=False):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr * ratio)
            else:
                group["lr"] = lr * ratio
