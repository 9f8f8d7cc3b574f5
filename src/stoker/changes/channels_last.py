"""Images with their channels last in memory, as tensor cores take them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from stoker.changes.change import Change, Switch
from stoker.changes.models import wrap_forward

_laid_out: set[int] = set()


def _around(module: nn.Module, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    if id(module) not in _laid_out:
        _laid_out.add(id(module))
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return inner(*tree_map(_lay_out, args), **tree_map(_lay_out, kwargs))


def _lay_out(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value


CHANGE = Change(
    id="channels_last",
    of="model",
    text="images and convolutions with their channels last in memory",
    kind="numerics",
    values=Switch(),
    apply=lambda value: wrap_forward(_around) if value else None,
    backfires="in float32, or with layers that have no kernel for it, it is slower: copies to and "
    "fro (pytorch#50036)",
)
