"""A closure handed to `optimizer.step` is the loop's own code: its time is not the update's.

LBFGS asks for one, and Lightning runs its whole training step in one. What the closure does beside
forward and backward (the loss, logging, gradient clipping) is `other`, as it is in a plain loop.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from stoker.watch.observer import Observer
from stoker.watch.phases import OTHER


def install(observer: Observer) -> Callable[[], None]:
    """Watch closures from now on; return what ends it. After the hooks, which open the update's phase."""

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not observer.here():
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _outside_update(observer, kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], _outside_update(observer, args[1]), *args[2:]), kwargs
        return None

    handle = register_optimizer_step_pre_hook(before_step)
    return handle.remove


def _outside_update(observer: Observer, closure: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(closure, updated=())
    def timed() -> Any:
        token = observer.timeline.enter(OTHER)
        try:
            return closure()
        finally:
            observer.timeline.leave(token)

    return timed
