"""Optimizers that update all parameters in one kernel."""

import inspect
from functools import wraps
from typing import Any

import torch

from stoker.changes.change import Change, Switch

_HAVE_IT = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def _apply(value: bool) -> None:
    for kind in _HAVE_IT:
        kind.__init__ = _fused(kind.__init__, value)  # type: ignore[method-assign]


def _fused(init: Any, value: bool) -> Any:
    signature = inspect.signature(init)

    @wraps(init)
    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = signature.bind(*args, **kwargs).arguments
        chosen = given.get("fused") is not None or given.get("foreach") is not None
        if not chosen and not given.get("differentiable"):
            kwargs["fused"] = value
        init(*args, **kwargs)

    return __init__


CHANGE = Change(
    id="fused_optimizer",
    of="process",
    text="the optimizer updates all parameters in one kernel",
    kind="numerics",
    values=Switch(),
    apply=_apply,
    backfires="parameters that are no floating-point tensors of one device are refused",
)
