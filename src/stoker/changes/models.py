"""Models are altered at their forward pass: the outermost modules that own an optimizer's parameters.

They are looked for when an optimizer is made; where a container was found and the loop calls what is in it,
one step later among its children. What is done around a call is done only while the model trains.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from stoker.watch.roots import Roots

# Takes a module, what calls it, and the call's arguments.
Around = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_around: list[Around] = []
_called: set[int] = set()
_roots: Roots | None = None


def wrap_forward(around: Around) -> None:
    """Have this done around every call of a model that trains; the first that is given is the outermost."""
    global _roots
    _around.append(around)
    if _roots is None:
        _roots = Roots(_call)
        _find_when_made(_roots)


def called() -> int:
    """How many models were met in their forward pass."""
    return len(_called)


def _call(module: nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _called.add(id(module))
    if not (module.training and torch.is_grad_enabled()):
        return inner(*args, **kwargs)
    call = inner
    for around in reversed(_around):
        call = _bound(around, module, call)
    return call(*args, **kwargs)


def _bound(around: Around, module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(module, inner, args, kwargs)


def _find_when_made(roots: Roots) -> None:
    init = Optimizer.__init__
    parameters: list[torch.Tensor] = []

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        parameters.extend(p for group in self.param_groups for p in group["params"])
        roots.find(parameters)

    def stepped(*_: object) -> None:
        if not _called:
            roots.descend()

    Optimizer.__init__ = __init__  # type: ignore[method-assign]
    # It stays: torch goes through all such hooks, and one that goes as it is called ends the script.
    register_optimizer_step_post_hook(stepped)
