"""The losses that a script sends backward, by whichever of torch's calls."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from stoker.changes import held


class Backward:
    """Notes what went backward since the last update; of a batch in parts each by its share of samples."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        # Of `torch.autograd.grad`, which also makes parts of a loss: they count where nothing else is seen.
        self._derived: list[float] = []
        self._inside = False

    def install(self) -> None:
        """Into torch's calls. A loss's own is the outermost: what scales losses does so within it."""
        torch.Tensor.backward = self._noting(torch.Tensor.backward, self._losses)  # type: ignore[method-assign]
        torch.autograd.backward = self._noting(torch.autograd.backward, self._losses)
        torch.autograd.grad = self._noting(torch.autograd.grad, self._derived)

    def loss(self) -> float | None:
        """All since the last update, which ends here; None where none was seen."""
        seen = self._losses or self._derived
        found = sum(seen) if seen else None
        self._losses.clear()
        self._derived.clear()
        return found

    def _noting(self, call: Callable[..., Any], losses: list[float]) -> Callable[..., Any]:
        signature = inspect.signature(call)
        first, *names = signature.parameters
        gradients = next(name for name in names if name in ("gradient", "grad_tensors", "grad_outputs"))

        @wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            # A checkpointed module's, within the loss's own; on a card in a thread of the engine.
            if self._inside:
                return call(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            losses.extend(_values(given[first], given.get(gradients)))
            self._inside = True
            try:
                return call(*args, **kwargs)
            finally:
                self._inside = False

        return noted


def _values(tensors: Any, given: Any) -> list[float]:
    """Each weighed by the gradients that are given for it."""
    parts = held.installed()
    share = 1.0 if parts is None else parts.weight
    each, by = _several(tensors), _several(given)
    found = []
    for at, one in enumerate(each):
        if isinstance(one, torch.Tensor):
            weight = by[at] if at < len(by) else None
            value = one.detach() if weight is None else one.detach() * weight.detach()
            found.append(float(value.sum().real) * share)
    return found


def _several(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    return (given,) if isinstance(given, torch.Tensor) else tuple(given)
