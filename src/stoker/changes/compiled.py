"""The model's forward pass, and so its backward pass, compiled."""

from collections.abc import Callable
from typing import Any

from torch import nn

from stoker.changes.change import Change, Choice
from stoker.changes.models import wrap_forward

_compiled: set[int] = set()


def _apply(mode: str) -> None:
    def around(module: nn.Module, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        if id(module) not in _compiled:
            _compiled.add(id(module))
            module.compile(mode=mode)
        return inner(*args, **kwargs)

    wrap_forward(around)


CHANGE = Change(
    id="compile",
    of="model",
    text="torch.compile of the model, in place",
    kind="numerics",
    values=Choice(("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")),
    apply=_apply,
    backfires="every new shape may be compiled anew; the first steps take seconds to minutes",
)
