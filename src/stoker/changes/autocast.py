"""Forward passes in half precision, where that is safe; parameters and what a model returns stay float32.

With fp16 small gradients would be lost, so losses are scaled: `backward` scales, the optimizer's `step`
unscales, and leaves a step out whose gradients overflowed; clipping sees them unscaled.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_map

from stoker.changes import held
from stoker.changes.change import Change, Choice
from stoker.changes.models import wrap_forward
from stoker.errors import UsageError

_update = torch.amp.GradScaler.update  # as it is, also where updates wait for the parts of a batch
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _apply(value: str) -> None:
    kind = _TYPES[value]

    def around(module: nn.Module, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        device = next((p.device.type for p in module.parameters()), "cpu")
        with torch.autocast(device, dtype=kind):
            return tree_map(_whole, inner(*args, **kwargs))

    wrap_forward(around)
    if value == "fp16":
        _Scaled().install()


def _whole(value: Any) -> Any:
    """Losses are worked out in float32, as without autocast."""
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value


class _Scaled:
    """Losses scaled in an unmodified loop."""

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None
        self._stepping = False
        self._stepped: set[int] = set()
        self._unscaled: set[int] = set()
        self._optimizers: dict[int, Optimizer] = {}
        self._kinds: set[type] = set()

    def install(self) -> None:
        """Into backward, step and clipping."""
        scaled, init = self, Optimizer.__init__
        backward: Callable[..., None] = torch.Tensor.backward

        @wraps(backward)
        def scaled_backward(tensor: torch.Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
            if gradient is None and tensor.numel() == 1:
                scaled._update_scale()
                tensor = scaled._of(tensor).scale(tensor)
            backward(tensor, gradient, *args, **kwargs)

        @wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            init(self, *args, **kwargs)
            scaled._optimizers[id(self)] = self
            scaled._wrap_step(type(self))

        torch.Tensor.backward = scaled_backward  # type: ignore[method-assign, assignment]
        Optimizer.__init__ = __init__  # type: ignore[method-assign]
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                setattr(owner, name, self._before_clipping(getattr(owner, name)))

    def _of(self, loss: torch.Tensor) -> torch.amp.GradScaler:
        if self._scaler is None:
            self._scaler = torch.amp.GradScaler(loss.device.type)
        return self._scaler

    def _update_scale(self) -> None:
        """Once for all optimizers that have stepped since: gradients of one scale are unscaled by it."""
        if self._scaler is not None and self._stepped:
            _update(self._scaler)
            self._stepped.clear()

    def _wrap_step(self, kind: Any) -> None:
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        step, scaled = kind.step, self

        @wraps(step)
        def scaled_step(self: Any, closure: Any = None) -> Any:
            scaler = scaled._scaler
            if scaler is None or scaled._stepping:
                return step(self, closure) if closure is not None else step(self)
            if closure is not None:
                raise UsageError(
                    f"change autocast = 'fp16': {kind.__name__} calls a closure, which losses that are "
                    "scaled cannot be used with; take autocast = 'bf16'"
                )
            if id(self) in scaled._stepped:
                scaled._update_scale()
            scaled._stepping = True
            try:
                scaler.step(self)
                parts = held.installed()
                if parts is None or not parts.holding:  # else it waits for the other parts of a batch
                    scaled._stepped.add(id(self))
            finally:
                scaled._stepping = False
                scaled._unscaled.discard(id(self))
            return None

        kind.step = scaled_step

    def _before_clipping(self, clip: Any) -> Any:
        @wraps(clip)
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self._unscale(given)
            return clip(given, *args, **kwargs)

        return clipped

    def _unscale(self, parameters: Iterable[torch.Tensor]) -> None:
        if self._scaler is None:
            return
        wanted = {id(p) for p in parameters}
        for key, optimizer in self._optimizers.items():
            owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if owned & wanted and key not in self._unscaled:
                self._scaler.unscale_(optimizer)
                self._unscaled.add(key)


CHANGE = Change(
    id="autocast",
    of="model",
    text="forward passes in half precision",
    kind="numerics",
    values=Choice(tuple(_TYPES)),
    apply=_apply,
    backfires="can be slower, or make a loss diverge (fairchem#397); what reads gradients "
    "itself sees them scaled with fp16",
)
