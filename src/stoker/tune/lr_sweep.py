"""What happens in a sweep's process: each step of the script's own loop with the next learning rate.

The rate is set right before the optimizer's step, after whatever the script or a scheduler has set.
Schedulers are held back from the first step on. With several optimizers, the one that steps first is swept.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from math import isfinite
from statistics import fmean
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stoker.scratch import Child
from stoker.tune.lr_curve import Running, Sweep
from stoker.tune.lr_rates import Rates


def as_argument(sweep: Sweep) -> dict[str, Any]:
    """What `prepare` is given."""
    return {"low": sweep.low, "high": sweep.high, "steps": sweep.steps}


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of a sweep's scratch run."""
    _Sweeping(child, Sweep(**argument)).install()


class _Sweeping:
    def __init__(self, child: Child, sweep: Sweep) -> None:
        self._child, self._sweep = child, sweep
        self._running = Running()
        self._losses: list[float] = []
        self._made = 0
        self._optimizer: Optimizer | None = None
        self._rates: Rates | None = None
        self._scaled = False

    def install(self) -> None:
        """Into backward, scaling, steps and schedulers."""
        self._note_losses()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        for kind in _kinds_of(LRScheduler):
            if "step" in vars(kind):
                kind.step = self._held_back(kind.step)

    def _held_back(self, step: Callable[..., None]) -> Callable[..., None]:
        @wraps(step)
        def held(*args: Any, **kwargs: Any) -> None:
            if self._optimizer is None:  # a scheduler's first one is its own, when it is made
                step(*args, **kwargs)

        return held

    def _note_losses(self) -> None:
        backward: Callable[..., None] = torch.Tensor.backward
        scale: Callable[..., Any] = torch.amp.GradScaler.scale

        @wraps(backward)
        def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if tensor.numel() == 1 and not self._scaled:
                self._note(float(tensor.detach()))
            self._scaled = False
            backward(tensor, *args, **kwargs)

        @wraps(scale)
        def unscaled(scaler: Any, outputs: Any) -> Any:
            if isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
                self._note(float(outputs.detach()))
                self._scaled = True  # what goes backward next is this one, scaled
            return scale(scaler, outputs)

        torch.Tensor.backward = noted  # type: ignore[method-assign, assignment]
        torch.amp.GradScaler.scale = unscaled  # type: ignore[method-assign, assignment]

    def _note(self, loss: float) -> None:
        self._losses.append(loss)
        if self._optimizer is not None and not isfinite(loss):
            # No step need come of it: a scaler leaves out those whose gradients are not finite.
            self._child.report("point", lr=self._sweep.at(self._made), loss=None)
            self._end(f"the loss is {loss}")

    def _end(self, why: str) -> None:
        self._child.report("stopped", why=why)
        self._child.end(self._made)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer, self._rates = optimizer, Rates(optimizer)
            self._child.report("groups", ratios=self._rates.ratios)
        if optimizer is self._optimizer and self._rates is not None:
            self._rates.set(self._sweep.at(self._made))

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if optimizer is not self._optimizer:
            return
        lr = self._sweep.at(self._made)
        self._made += 1
        self._child.progress(self._made)
        if not self._losses:
            return
        loss, self._losses = fmean(self._losses), []  # of all parts of a step that accumulates
        # JSON has no number that is none.
        self._child.report("point", lr=lr, loss=loss if isfinite(loss) else None)
        if why := self._running.gone(loss):
            self._end(why)
        if self._made >= self._sweep.steps:
            self._end("the highest rate is reached")


def _kinds_of(kind: Any) -> list[Any]:
    below: list[Any] = kind.__subclasses__()
    return [kind, *(each for one in below for each in _kinds_of(one))]
