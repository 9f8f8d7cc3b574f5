"""How learning rates follow a batch size that was changed: not at all, in proportion, or by its square root.

They are scaled in the optimizer's groups before a scheduler reads them: when the optimizer is made, or, where
the loader is made later, then. Schedulers that are given rates of their own have those scaled.
"""

import inspect
import weakref
from functools import wraps
from math import sqrt
from typing import Any

import torch
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR
from torch.optim.optimizer import Optimizer

from stoker.changes.batch_size import on_change
from stoker.changes.change import Change, Choice
from stoker.errors import UsageError

_RULES = {"none": lambda times: 1.0, "linear": lambda times: times, "sqrt": sqrt}
# Schedulers with rates of their own, and what they call them.
_OWN = {OneCycleLR: ("max_lr",), CyclicLR: ("base_lr", "max_lr")}
_lines: list[str] = []


def _apply(value: str) -> None:
    if value != "none":
        _Rates(value).install()


class _Rates:
    """Optimizers and schedulers as they are made, and the factor once it is known."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._factor: float | None = None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._schedulers: weakref.WeakSet[LRScheduler] = weakref.WeakSet()

    def install(self) -> None:
        """Into the making of loaders, optimizers and schedulers."""
        rates, init, schedule = self, Optimizer.__init__, LRScheduler.__init__

        @wraps(init)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            rates._optimizers.add(self)
            if rates._factor is not None:
                rates._scale(self)

        @wraps(schedule)
        def make_scheduler(self: Any, *args: Any, **kwargs: Any) -> None:
            schedule(self, *args, **kwargs)
            rates._schedulers.add(self)

        Optimizer.__init__ = make  # type: ignore[method-assign]
        LRScheduler.__init__ = make_scheduler  # type: ignore[method-assign]
        for kind, names in _OWN.items():
            kind.__init__ = self._own_rates(kind.__init__, names)  # type: ignore[misc]
        on_change(self._learn)

    def _learn(self, times: float) -> None:
        factor = _RULES[self._rule](times)
        if self._factor is not None:
            if self._factor != factor:
                raise UsageError(
                    f"change lr_rule = {self._rule!r}: one loader's batches become {times:g} times as large "
                    "and another's not, so there is no one rate; take lr_rule = 'none'"
                )
            return
        self._factor = factor
        for scheduler in self._schedulers:
            if type(scheduler) in _OWN:
                raise UsageError(
                    f"change lr_rule = {self._rule!r}: {type(scheduler).__name__} was made before the loader "
                    "whose batches change, with rates that are not scaled; make the loader first, or take "
                    "lr_rule = 'none'"
                )
            scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
        for optimizer in self._optimizers:
            self._scale(optimizer)

    def _scale(self, optimizer: Optimizer) -> None:
        factor = self._factor
        assert factor is not None
        for group in optimizer.param_groups:
            had = group["lr"]
            if isinstance(had, torch.Tensor):
                had = float(had)
                group["lr"].mul_(factor)
            else:
                group["lr"] = had * factor
            if "initial_lr" in group:
                group["initial_lr"] = group["initial_lr"] * factor
            _lines.append(
                f"changed: {type(optimizer).__name__}: lr {had:g} -> {had * factor:g} ({self._rule})"
            )

    def _own_rates(self, init: Any, names: tuple[str, ...]) -> Any:
        signature = inspect.signature(init)

        @wraps(init)
        def make(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            if self._factor is not None:
                for name in names:
                    had = given.arguments[name]
                    many = isinstance(had, (list, tuple))
                    _lines.append(f"changed: {type(args[0]).__name__}: {name} {had} times {self._factor:g}")
                    given.arguments[name] = (
                        [rate * self._factor for rate in had] if many else had * self._factor
                    )
            init(*given.args, **given.kwargs)

        return make


def _told(value: str) -> list[str]:
    if value == "none":
        return []
    return list(dict.fromkeys(_lines)) or [f"lr_rule = {value!r} had no effect: no batch size was changed"]


CHANGE = Change(
    id="lr_rule",
    of="update",
    text="how learning rates follow a batch size that is changed",
    kind="optimization",
    values=Choice(tuple(_RULES)),
    apply=_apply,
    told=_told,
    backfires="rates that a loop sets itself in each step are not scaled; for Adam linear is mostly too much",
)
