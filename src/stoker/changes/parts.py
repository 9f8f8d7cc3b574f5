"""Where a loop stands in a batch that it gets in parts, and what is held back until the last of them.

A loop that cannot be followed is refused at its first update. Later, a batch of which the loop leaves out a
part (a loss that is not finite, say) is left out whole, as the loop would have done with the whole batch.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from stoker.errors import UsageError

_LINES = """\
    optimizer.zero_grad()
    for x_part, y_part in zip(x.split({most}), y.split({most})):
        loss = criterion(model(x_part), y_part) * len(x_part) / len(x)
        loss.backward()
    optimizer.step()"""


def lines(most: int) -> str:
    """What to write in a loop, for batches in parts."""
    return _LINES.format(most=most)


@dataclass(slots=True)
class _Batch:
    """A batch that was drawn: the samples of its parts, and what the loop did with the part it has."""

    owner: "weakref.ref[Any]"
    sizes: Sequence[int]
    thread: int = field(default_factory=threading.get_ident)
    at: int = 0
    trained: int = 0
    backward: bool = False
    stepped: bool = False
    left_out: bool = False


class Parts:
    """Follows a loop through its batches."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.largest = 0
        self.samples = 0
        self.on_first_batch: Callable[[int], None] = lambda samples: None
        self.divided = 0
        self.updates = 0
        self.left_out = 0
        self.batch_norm: str | None = None
        self._batch: _Batch | None = None
        self._unfinished = False
        self._witness: Tensor | None = None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    # --- what the loop draws --------------------------------------------------------------------------------

    def begin(self, owner: Any, sizes: Sequence[int]) -> None:
        """The first part of a batch is handed out."""
        batch = self._divided
        if batch is not None and batch.owner() is not owner and batch.at + 1 < len(batch.sizes):
            raise self.refusal("several loaders feed one update, and their parts would not go together")
        self.end()
        if not self.samples:
            self.on_first_batch(sum(sizes))
        self.samples += sum(sizes)
        self.largest = max(self.largest, sum(sizes))
        if len(sizes) > 1:
            if not self.divided:
                self.batch_norm = _find_batch_norm()
            self.divided += 1
        self._batch = _Batch(weakref.ref(owner), sizes)

    def advance(self) -> None:
        """The next part is handed out."""
        batch = self._batch
        assert batch is not None
        self._check_stepped(batch)
        batch.at += 1
        batch.backward = batch.stepped = False

    def leave(self, owner: Any) -> None:
        """An iterator is at its end; another's batch is left as it is."""
        if self._batch is not None and self._batch.owner() is owner:
            self.end()

    def end(self) -> None:
        """The batch is over, or given up: gradients of some of its parts are those of no update."""
        batch = self._batch
        if batch is not None:
            self._check_stepped(batch)
        if self._unfinished:
            self.left_out += 1
            self._unfinished = False
            for optimizer in self._optimizers:
                _clear(optimizer)
        self._batch = None

    def _check_stepped(self, batch: _Batch) -> None:
        if len(batch.sizes) > 1 and batch.backward and not batch.stepped and not batch.left_out:
            self._leave_out(
                batch,
                "the loop makes no update after some backward passes: it accumulates gradients itself, so "
                "lower its own batch size and accumulate over more batches",
            )

    # --- what the loop does with a part ---------------------------------------------------------------------

    @property
    def weight(self) -> float:
        """The share of a batch's samples that are in the part that the loop has."""
        batch = self._divided
        return 1.0 if batch is None else batch.sizes[batch.at] / sum(batch.sizes)

    @property
    def holding(self) -> bool:
        """Whether what makes an update waits for another part."""
        batch = self._divided
        return batch is not None and (batch.left_out or batch.at + 1 < len(batch.sizes))

    @property
    def dividing(self) -> bool:
        """Whether the loop has a part of a batch."""
        return self._divided is not None

    @property
    def keeps_gradients(self) -> bool:
        """Whether there are gradients that the next part's are added to."""
        return self._divided is not None and self._unfinished

    def before_backward(self) -> None:
        """A loss is about to go backward."""
        batch = self._batch
        if batch is None or len(batch.sizes) == 1:
            return
        if batch.owner() is None:
            raise self.refusal(
                "the loop draws each batch from a new iterator, as in next(iter(loader)), so the other parts "
                "of the batch are never asked for"
            )
        if batch.thread != threading.get_ident():
            raise self.refusal("batches are drawn in another thread than the one that trains")
        if batch.stepped:
            raise self.refusal("the loop makes more than one update with a batch")
        if batch.left_out:
            return
        if self._witness is not None and self._witness.grad is None and self._unfinished:
            raise self.refusal("the loop clears gradients itself; have it call optimizer.zero_grad()")
        if not batch.backward:
            if batch.trained != batch.at:
                self._leave_out(
                    batch, "a part of a batch was drawn and not trained on: the loop draws batches ahead"
                )
            batch.trained += 1
        batch.backward = self._unfinished = True

    def after_backward(self) -> None:
        """It has: a parameter with a gradient is remembered, to see whether the loop clears it."""
        if self._unfinished and (self._witness is None or self._witness.grad is None):
            owned = (p for one in self._optimizers for group in one.param_groups for p in group["params"])
            self._witness = next((p for p in owned if p.grad is not None), None)

    def hold_step(self, closure: Any) -> bool:
        """Whether an optimizer's step waits."""
        batch = self._divided
        if batch is None:
            return False
        if closure is not None:
            raise self.refusal("the optimizer calls a closure, which makes losses itself")
        if batch.left_out:
            return True
        if not batch.backward:
            raise self.refusal("an update was made without a backward pass, so its gradients are not known")
        batch.stepped = True
        if self.holding:
            return True
        self.updates += 1
        self._unfinished = False
        return False

    def knows(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""
        self._optimizers.add(optimizer)

    # --- what cannot be followed ----------------------------------------------------------------------------

    def refusal(self, reason: str) -> UsageError:
        """Why, and what to do instead."""
        return UsageError(
            f"change micro_batch = {self.most}: {reason}. Take it out, or write it in the loop:\n"
            f"{lines(self.most)}"
        )

    def _leave_out(self, batch: _Batch, reason: str) -> None:
        if not self.updates:
            raise self.refusal(reason)
        batch.left_out = True

    @property
    def _divided(self) -> _Batch | None:
        batch = self._batch
        return batch if batch is not None and len(batch.sizes) > 1 and batch.owner() is not None else None


_zero_grad = Optimizer.zero_grad


def _clear(optimizer: Optimizer) -> None:
    _zero_grad(optimizer)


def _find_batch_norm() -> str | None:
    """The name of a layer that makes the samples of a batch depend on one another."""
    for thing in gc.get_objects():
        kind = type(thing)  # never isinstance: a lazy proxy's __class__ may run code
        if issubclass(kind, nn.modules.batchnorm._BatchNorm) and thing.__dict__.get("training"):
            return kind.__name__
    return None
