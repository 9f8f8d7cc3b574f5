"""Validation: the task's metrics over the whole validation feed, on all ranks together."""

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from stoker.errors import TrainingFailed, UsageError
from stoker.train import rng
from stoker.train.ema import Ema
from stoker.train.means import Means
from stoker.train.meeting import Meeting
from stoker.train.microbatch import halve, is_out_of_memory, spans
from stoker.train.shares import count_share
from stoker.train.task import Feeds, Task

if TYPE_CHECKING:
    from torchmetrics import Metric


def validate(
    task: Task[Any],
    *,
    feeds: Feeds,
    module: nn.Module,
    model: nn.Module,
    ema: Ema | None,
    meeting: Meeting,
    device: torch.device,
    micro_batch: int,
    is_to_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Each metric by name, and "loss" where the task judges by it; of the weights' mean where it is kept.

    None where some rank was told to stop: whoever stops a training may not wait for a long validation.
    """
    assert feeds.valid is not None
    meeting.share_buffers(list(module.buffers()))
    was_training = module.training
    model.eval()
    try:
        with torch.no_grad(), ema.in_place() if ema is not None else contextlib.nullcontext():
            if ema is not None:
                meeting.share_buffers(list(module.buffers()))  # of the mean: it is saved as rank 0 has it too
            drawn = rng.read(device)
            while True:
                found = _go_through(task, feeds, model, meeting, device, micro_batch, is_to_stop)
                if not isinstance(found, str):
                    return found
                if found == "stopped":
                    rng.write(drawn, device)
                    return None
                micro_batch = _smaller(micro_batch, device)
                rng.write(drawn, device)
    finally:
        model.train(was_training)


def _go_through(
    task: Task[Any],
    feeds: Feeds,
    model: nn.Module,
    meeting: Meeting,
    device: torch.device,
    micro_batch: int,
    is_to_stop: Callable[[], bool],
) -> dict[str, float] | Literal["full", "stopped"]:
    """One pass; why it was left, where some rank ran out of memory or is to stop: all know of it alike."""
    assert feeds.valid is not None
    metrics = {name: metric.to(device) for name, metric in task.metrics().items()}
    means = Means(device)
    wants_loss = task.better[0] == "loss" or not metrics
    # The same pass each time: a random transform counts its draws by the epoch.
    feeds.valid.set_epoch(0)
    for batch in feeds.valid:
        own, _ = count_share(feeds.valid, task.count(batch), meeting)
        out_of_memory = False
        try:
            for start, stop in spans(own, micro_batch):
                part = task.cut(batch, start, stop)
                if metrics:
                    task.judge(model, part, metrics)
                if wants_loss:
                    losses = task.loss(model, part)
                    means.add({"loss": losses.total, **losses.parts}, losses.samples)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            out_of_memory = True
        full, stopped = meeting.any([out_of_memory, is_to_stop()])
        if stopped:
            return "stopped"
        if full:
            return "full"
    return {**_computed(metrics), **means.read(meeting)}


def _computed(metrics: Mapping[str, "Metric"]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise UsageError(f"metric {name!r} is not one number but {value!r}: give the task one for each")
        found[name] = float(value)
    return found


def _smaller(micro_batch: int, device: torch.device) -> int:
    smaller = halve(micro_batch)
    if smaller is None:
        raise TrainingFailed(
            "out of memory in validation with one sample at a time: give the validation smaller samples"
        )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return smaller
