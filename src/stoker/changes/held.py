"""Batches handed out in parts to a loop nobody edited, and its updates held back until the last part."""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DistributedSampler

from stoker.changes.division import Indivisible, divide
from stoker.changes.loader_classes import put_into_each
from stoker.changes.parts import Parts

# They count the batches that they draw, or draw one ahead, and have a setting of their own.
_TRAINERS = {
    "transformers": "gradient_accumulation_steps and per_device_train_batch_size of its TrainingArguments",
    "lightning": "accumulate_grad_batches of its Trainer, and a smaller batch_size",
    "pytorch_lightning": "accumulate_grad_batches of its Trainer, and a smaller batch_size",
    "accelerate": "gradient_accumulation_steps of its Accelerator, and a smaller batch_size",
}
_clip_norm = nn.utils.clip_grad.clip_grad_norm_
_parts: Parts | None = None


def install(most: int) -> None:
    """Have loaders hand out parts of at most so many samples from now on."""
    global _parts
    _parts = parts = Parts(most)
    put_into_each(partial(_divide_batches, parts))
    _weigh_losses(parts)
    _hold_optimizers(parts)
    _hold_schedulers(parts)
    _hold_scalers(parts)
    _hold_clipping(parts)


def installed() -> Parts | None:
    """Where the loop stands; None where batches are not divided."""
    return _parts


class PartedIterator:
    """A loader's iterator, whose batches come in parts; what else it has is the loader's own."""

    def __init__(self, inner: Iterator[Any], batch_size: int | None, parts: Parts) -> None:
        self._inner, self._batch_size, self._parts = inner, batch_size, parts
        self._waiting: list[Any] = []

    def __iter__(self) -> "PartedIterator":
        return self

    def __next__(self) -> Any:
        if self._waiting:
            self._parts.advance()
            return self._waiting.pop()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._parts.leave(self)
            raise
        try:
            divided = divide(batch, self._parts.most, self._batch_size)
        except Indivisible as error:
            raise self._parts.refusal(f"a batch cannot be divided: {error}") from None
        self._parts.begin(self, [samples for _, samples in divided])
        self._waiting = [part for part, _ in reversed(divided)]
        return self._waiting.pop()

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


def _divide_batches(parts: Parts, kind: Any) -> None:
    begin = kind.__iter__

    @wraps(begin)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if not torch.is_grad_enabled():
            return begin(self)
        _refuse_trainers(parts)
        _refuse_uneven_ranks(parts, self)
        return PartedIterator(begin(self), self.batch_size, parts)

    kind.__iter__ = __iter__


def _refuse_trainers(parts: Parts) -> None:
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name in _TRAINERS:
            raise parts.refusal(f"{name} counts batches itself; use {_TRAINERS[name]}")
        frame = frame.f_back  # type: ignore[assignment]


def _refuse_uneven_ranks(parts: Parts, loader: Any) -> None:
    """Each part's gradients are averaged over ranks, which is right, if all have the same number of parts.

    No `no_sync` is used: with the parts added up before they are averaged the result would be the same, and
    one rank that left it a part early would give each rank other weights, without a word.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    ranks = distributed.get_world_size()
    if ranks > 1 and not (isinstance(loader.sampler, DistributedSampler) and loader.batch_size):
        raise parts.refusal(
            f"with {ranks} ranks only a DistributedSampler makes it sure that all draw batches of one size; "
            f"this loader has a {type(loader.sampler).__name__}"
        )


def _weigh_losses(parts: Parts) -> None:
    """A mean over a part's samples counts by its share of the batch's."""
    backward = torch.autograd.backward
    inside = False

    @wraps(backward)
    def weighed(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        nonlocal inside
        if inside:  # a checkpointed module's, within the loss's own; on a card in a thread of the engine
            backward(tensors, grad_tensors, *args, **kwargs)
            return
        parts.before_backward()
        if parts.dividing:
            losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            given = grad_tensors is not None or kwargs.get("grad_variables") is not None
            if given or any(getattr(loss, "numel", lambda: 0)() != 1 for loss in losses):
                raise parts.refusal("what goes backward is no loss, but a tensor with gradients of its own")
            tensors, grad_tensors = losses, [torch.full_like(loss, parts.weight) for loss in losses]
        inside = True
        try:
            backward(tensors, grad_tensors, *args, **kwargs)
        finally:
            inside = False
        parts.after_backward()

    torch.autograd.backward = weighed


def _hold_optimizers(parts: Parts) -> None:
    init = Optimizer.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        parts.knows(self)
        _hold_step(parts, type(self))
        _hold_zero_grad(parts, type(self))

    Optimizer.__init__ = __init__  # type: ignore[method-assign]
    _hold_zero_grad(parts, nn.Module)
    average = AveragedModel.update_parameters
    AveragedModel.update_parameters = _unless(average, lambda: parts.holding)  # type: ignore[method-assign]


def _hold_step(parts: Parts, kind: Any) -> None:
    if hasattr(kind.step, "_stoker_held"):
        return
    step = kind.step

    @wraps(step)
    def held(self: Any, closure: Any = None, **kwargs: Any) -> Any:
        if parts.hold_step(closure):
            return None
        return step(self, **kwargs) if closure is None else step(self, closure, **kwargs)

    held._stoker_held = True  # type: ignore[attr-defined]
    kind.step = held


def _hold_zero_grad(parts: Parts, kind: Any) -> None:
    if not hasattr(kind.zero_grad, "_stoker_held"):
        kind.zero_grad = _unless(kind.zero_grad, lambda: parts.keeps_gradients)


def _hold_schedulers(parts: Parts) -> None:
    making = 0
    init = LRScheduler.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        nonlocal making
        hold(type(self))  # one that the script defines
        making += 1
        try:
            init(self, *args, **kwargs)  # takes a first step itself
        finally:
            making -= 1

    def waits(scheduler: Any) -> bool:
        if making or not parts.dividing:
            return False
        if isinstance(scheduler, ReduceLROnPlateau):
            raise parts.refusal("ReduceLROnPlateau is stepped in each batch, with the loss of a part of it")
        return parts.holding

    def hold(kind: Any) -> None:
        if hasattr(kind.step, "_stoker_held"):
            return
        step = kind.step

        @wraps(step)
        def held(self: Any, *args: Any, **kwargs: Any) -> Any:
            return None if waits(self) else step(self, *args, **kwargs)

        held._stoker_held = True  # type: ignore[attr-defined]
        kind.step = held

    LRScheduler.__init__ = __init__  # type: ignore[method-assign]
    todo: list[Any] = [LRScheduler]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if "step" in vars(kind):
            hold(kind)


def _hold_scalers(parts: Parts) -> None:
    """A script's own: all parts of a batch have the same scale, and are unscaled together."""
    kind: Any = torch.amp.GradScaler
    step = kind.step

    @wraps(step)
    def held(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        waits = parts.hold_step(kwargs.get("closure"))
        return None if waits else step(self, optimizer, *args, **kwargs)

    kind.step = held
    kind.update = _unless(kind.update, lambda: parts.holding)
    kind.unscale_ = _unless(kind.unscale_, lambda: parts.holding)


def _hold_clipping(parts: Parts) -> None:
    for owner in (nn.utils, nn.utils.clip_grad):
        owner.clip_grad_value_ = _unless(owner.clip_grad_value_, lambda: parts.holding)  # type: ignore[attr-defined]
        owner.clip_grad_norm_ = _clipping(parts, owner.clip_grad_norm_)  # type: ignore[attr-defined]


def _clipping(parts: Parts, clip: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(_clip_norm)

    @wraps(clip)
    def clipped(*args: Any, **kwargs: Any) -> Any:
        if not parts.holding:
            return clip(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        given["max_norm"] = float("inf")  # the norm so far, and nothing clipped
        return _clip_norm(**given)

    return clipped


def _unless(call: Callable[..., Any], waits: Callable[[], bool]) -> Callable[..., Any]:
    @wraps(call)
    def held(*args: Any, **kwargs: Any) -> Any:
        return None if waits() else call(*args, **kwargs)

    held._stoker_held = True  # type: ignore[attr-defined]
    return held
