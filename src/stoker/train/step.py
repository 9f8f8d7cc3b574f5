"""One optimizer step over a batch, in micro-batches; out of memory, it is made again in smaller ones.

Nothing of a step that failed is left: gradients, buffers (batch statistics) and generators are put back to
where the step began, the scaler and the weights are not touched before all ranks have come through, and the
batch is the one that is held, so no sample is lost or trained on twice.

Ranks agree before any gradient is exchanged. That is why gradients are summed after the last micro-batch and
not behind its backward: a rank that runs out of memory there would leave the others waiting for ever.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker.errors import TrainingFailed
from stoker.train import rng
from stoker.train.means import Means
from stoker.train.meeting import Meeting
from stoker.train.microbatch import halve, is_out_of_memory, spans
from stoker.train.task import Feeds, Losses, Task


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What a step tells: the gradient's length where it was asked for, still on the device."""

    gradient: Tensor | None
    # A rank was told to stop; the step is done.
    stop: bool
    # What was given up to come through, in words; one for each time that memory ran out.
    backed_off: tuple[str, ...] = ()


class Stepper:
    """Makes steps: `module` holds the weights, `model` is the same as Fabric has set it up.

    `is_to_stop` is asked when ranks meet anyway: a wish to stop that came in the step is known by its end.
    """

    def __init__(
        self,
        task: Task[Any],
        *,
        fabric: Any,
        module: nn.Module,
        model: nn.Module,
        optimizer: Any,
        feeds: Feeds,
        meeting: Meeting,
        micro_batch: int,
        clip: float,
        is_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._task = task
        self._fabric = fabric
        self._model = model
        self._optimizer = optimizer
        self._feeds = feeds
        self._meeting = meeting
        self._clip = clip
        self._is_to_stop = is_to_stop
        self._weights = [weight for weight in module.parameters() if weight.requires_grad]
        self._buffers = _by_type(list(module.buffers()))
        self._kept = [[torch.empty_like(buffer) for buffer in group] for group in self._buffers]
        # SyncBatchNorm: no rank can leave a forward while others are in it.
        self.waits_in_forward = meeting.size > 1 and any(
            isinstance(part, nn.SyncBatchNorm) for part in module.modules()
        )
        self.micro_batch = micro_batch
        # What memory has made of it; None while it is as it was asked for.
        self.lowered_to: int | None = None

    def run(self, batch: Any, *, samples: int, whole: int, means: Means) -> Stepped:
        """A step on this rank's `samples`, of `whole` over all ranks."""
        backed_off: list[str] = []
        self._keep_buffers()
        drawn = rng.read(self._fabric.device)
        while True:
            # No reference to the error outlives the attempt: its frames hold the activations.
            losses, error = self._attempt(batch, samples, whole)
            failed, stopped, *used = self._meeting.any(
                [
                    error is not None,
                    self._is_to_stop(),
                    *(weight.grad is not None for weight in self._weights),
                ]
            )
            if not failed:
                break
            self._optimizer.zero_grad(set_to_none=True)
            del losses
            self._put_buffers_back()
            rng.write(drawn, self._fabric.device)
            backed_off.append(self._give_way(error))
        for one in losses:
            means.add({"loss": one.total, **one.parts}, one.samples)
        self._meeting.add_gradients(self._weights, used)
        gradient = self._update()
        return Stepped(gradient=gradient, stop=stopped, backed_off=tuple(backed_off))

    def lower(self, size: int) -> None:
        """Micro-batches of so many samples at most, from now on."""
        self.micro_batch = self.lowered_to = min(self.micro_batch, size)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """What is run in the block leaves no trace in gradients, buffers and generators."""
        self._keep_buffers()
        drawn = rng.read(self._fabric.device)
        try:
            yield
        finally:
            self._optimizer.zero_grad(set_to_none=True)
            self._put_buffers_back()
            rng.write(drawn, self._fabric.device)

    def accumulate(self, batch: Any, samples: int, whole: int) -> list[Losses]:
        """Forward and backward of every micro-batch; gradients are those of the mean over `whole` samples."""
        losses = []
        for start, stop in spans(samples, self.micro_batch):
            part = (
                batch if (start, stop) == (0, self._task.count(batch)) else self._task.cut(batch, start, stop)
            )
            with self._unsynced():
                one = self._task.loss(self._model, part)
                share = one.samples / whole
                self._fabric.backward(one.total if share == 1 else one.total * share)
            losses.append(
                Losses(
                    total=one.total.detach(),
                    samples=one.samples,
                    parts={name: value.detach() for name, value in one.parts.items()},
                )
            )
        return losses

    # --- of one step ------------------------------------------------------------------------------

    def _attempt(self, batch: Any, samples: int, whole: int) -> tuple[list[Losses], str | None]:
        try:
            losses = self.accumulate(batch, samples, whole)
            self._meeting.try_room(self._weights)
            return losses, None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self.waits_in_forward:
                raise TrainingFailed(
                    f"out of memory with a micro-batch of {self.micro_batch}, and SyncBatchNorm has the "
                    "other ranks waiting inside their forward, so none can back off: lower train.micro_batch"
                ) from error
            return [], str(error).partition("\n")[0]
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise TrainingFailed(
                f"a batch norm has one value a channel in a micro-batch of {self.micro_batch}, and no "
                "variance: take larger samples, or a larger train.micro_batch that leaves no rest of 1"
            ) from error

    def _unsynced(self) -> contextlib.AbstractContextManager[Any]:
        if self._meeting.size == 1:
            return contextlib.nullcontext()
        held: contextlib.AbstractContextManager[Any] = self._fabric.no_backward_sync(self._model)
        return held

    def _update(self) -> Tensor | None:
        gradient = None
        if self._clip:
            # Not finite is the scaler's business with fp16, and the log's without.
            gradient = self._fabric.clip_gradients(
                self._model, self._optimizer, max_norm=self._clip, error_if_nonfinite=False
            )
        try:
            self._optimizer.step()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingFailed(
                "out of memory in the optimizer's update, where weights may be half changed: the last "
                "checkpoint is whole. Go on from it with a feed that leaves more room (tier, reserve), or "
                "begin anew with a smaller model or train.optimizer.name=sgd"
            ) from error
        self._optimizer.zero_grad(set_to_none=True)
        return gradient

    # --- out of memory ----------------------------------------------------------------------------

    def _give_way(self, error: str | None) -> str:
        """Make room, on all ranks alike: first of held samples, then by half of the micro-batch."""
        why = error or "another rank ran out of memory"
        # What is seen once an epoch before what each step needs.
        told = self._give_back("valid", why) or self._give_back("train", why)
        if told:
            return told
        smaller = halve(self.micro_batch)
        if smaller is None:
            raise TrainingFailed(
                f"out of memory with one sample at a time ({why}): lower the model's size or the sample's, "
                "use precision bf16, or free the device (`stoker check` names who holds it)"
            )
        before = self.micro_batch
        self.lower(smaller)
        self._empty_cache()
        return f"{why}: micro-batches of {smaller} instead of {before}, same batch"

    def _give_back(self, which: Literal["train", "valid"], why: str) -> str:
        """Have a feed's samples leave the device, on all ranks; what is told, "" where that is no help."""
        feed = self._feeds.train if which == "train" else self._feeds.valid
        # A feed that was not used yet is not asked for its tier: it would take memory to know it.
        held = feed is not None and feed.on_device > 0
        # Only where there are samples on some rank's device does it help, and then the micro-batch stays.
        if not self._meeting.any([held])[0]:
            return ""
        moved, where = False, "gave memory back on another rank"
        if feed is not None and held:
            before = feed.tier
            feed.shrink(why)
            moved, where = feed.tier != before, f"went from {before} to {feed.tier}"
        self._empty_cache()
        if not self._meeting.any([moved])[0]:
            return ""
        return f"{why}: the {'feed' if which == 'train' else 'validation feed'} {where}"

    def _empty_cache(self) -> None:
        if self._fabric.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def _keep_buffers(self) -> None:
        for kept, buffers in zip(self._kept, self._buffers, strict=True):
            torch._foreach_copy_(kept, buffers)

    @torch.no_grad()
    def _put_buffers_back(self) -> None:
        for kept, buffers in zip(self._kept, self._buffers, strict=True):
            torch._foreach_copy_(buffers, kept)


def _by_type(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Those of one type together: they are copied by one kernel then, before every step."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())
