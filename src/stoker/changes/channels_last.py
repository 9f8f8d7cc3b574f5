"""Images and volumes with their channels last in memory, as tensor cores take them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from stoker.changes.change import Change, Switch
from stoker.changes.models import wrap_forward

# Of images, and of volumes; torch has no such format for others, and raises where one is asked for.
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
# Of each module that was laid out, the dimensions of its convolutions.
_laid_out: dict[int, frozenset[int]] = {}


def _around(module: nn.Module, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    if id(module) not in _laid_out:
        _laid_out[id(module)] = frozenset(_FORMATS) & {one.dim() for one in module.parameters()}
        module._apply(_put_last)  # as Module.to does, which takes one format for images and volumes alike
    lay_out = partial(_lay_out, _laid_out[id(module)])
    return inner(*tree_map(lay_out, args), **tree_map(lay_out, kwargs))


def _lay_out(dimensions: frozenset[int], value: Any) -> Any:
    """An input, where the module has a convolution for it: others, as frames of images, may be viewed."""
    is_image = isinstance(value, torch.Tensor) and value.dim() in dimensions
    return _put_last(value) if is_image and value.is_floating_point() else value


def _put_last(value: torch.Tensor) -> torch.Tensor:
    layout = _FORMATS.get(value.dim())
    return value if layout is None else value.contiguous(memory_format=layout)


CHANGE = Change(
    id="channels_last",
    of="model",
    text="images, volumes and convolutions with their channels last in memory",
    kind="numerics",
    values=Switch(),
    apply=lambda value: wrap_forward(_around) if value else None,
    backfires="in float32, or with layers that have no kernel for it, it is slower: copies to and "
    "fro (pytorch#50036)",
)
