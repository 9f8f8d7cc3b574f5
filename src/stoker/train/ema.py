"""A running mean of the weights, beside them, on their device."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from stoker.train.config import EmaConfig


class Ema:
    """The mean of a model's floating-point weights and buffers; what counts is copied as it is."""

    def __init__(self, model: nn.Module, config: EmaConfig) -> None:
        self._config = config
        self._own = _values(model)
        self._mean = [value.detach().clone() for value in self._own.values()]
        pairs = list(zip(self._mean, self._own.values(), strict=True))
        # Sorted once: this is done in every step.
        self._means = [mean for mean, _ in pairs if mean.is_floating_point()]
        self._meant = [own for mean, own in pairs if mean.is_floating_point()]
        self._counts = [(mean, own) for mean, own in pairs if not mean.is_floating_point()]
        self._updates = 0

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step`, counted from 1."""
        if step % self._config.every:
            return
        self._updates += 1
        # At first the mean of few: a decay of 0.999 would hold on to the first weights for a thousand steps.
        keep = min(self._config.decay, (1 + self._updates) / (10 + self._updates))
        if self._means:
            torch._foreach_lerp_(self._means, self._meant, 1 - keep)
        for mean, own in self._counts:
            mean.copy_(own)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the mean's values inside the block, and its own again after it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """The mean by the names of the weights."""
        return dict(zip(self._own, self._mean, strict=True))

    @property
    def updates(self) -> int:
        """How many times weights were taken in."""
        return self._updates

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Go on from a kept mean."""
        for name, mean in zip(self._own, self._mean, strict=True):
            mean.copy_(state[name])
        self._updates = updates

    @torch.no_grad()
    def _swap(self) -> None:
        """One by one: a third copy of all weights is memory that a full card does not have."""
        for own, mean in zip(self._own.values(), self._mean, strict=True):
            kept = own.detach().clone()
            own.copy_(mean)
            mean.copy_(kept)


def _values(model: nn.Module) -> dict[str, Tensor]:
    """Weights and the buffers that a checkpoint keeps, by name, each once."""
    kept = set(model.state_dict())
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: value for name, value in named if name in kept}
