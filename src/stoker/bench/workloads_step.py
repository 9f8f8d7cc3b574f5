"""A training step as it is measured: with the note's numbers and layout or with Stoker's, fed or not."""

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from stoker.train.optimizer import build_optimizer
from stoker.train.precision import cudnn_benchmark, put_channels_last
from stoker.train.task import Task

# Steps that the host may be ahead of the device. Further ahead it would stand in a full queue, spinning, and
# whatever it does for the feed would be hidden in that.
_AHEAD = 2
_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class How:
    """Numbers and layout of a step. Without more said, they are torch's own."""

    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    tf32: bool = False
    channels_last: bool = False
    cudnn_benchmark: bool = False
    compile: bool = False

    @contextlib.contextmanager
    def switched(self) -> Iterator[None]:
        """With those that are switches of the process."""
        before = torch.get_float32_matmul_precision()
        if self.tf32:
            torch.set_float32_matmul_precision("high")
        try:
            with cudnn_benchmark(self.cudnn_benchmark):
                yield
        finally:
            torch.set_float32_matmul_precision(before)


class Step:
    """Forward, backward and update of a task's model; the loss is not read."""

    def __init__(self, task: Task[Any], how: How, device: torch.device) -> None:
        torch.manual_seed(0)
        self.task, self.how = task, how
        self._device = device
        self._model = task.build_model().to(device).train()
        if how.channels_last:
            put_channels_last(self._model)
        self._optimizer = build_optimizer(task, self._model, task.config.train.optimizer)
        self._scaler = torch.amp.GradScaler(device.type, enabled=how.precision == "fp16")
        if how.compile:
            self._model.compile()

    def __call__(self, batch: Any) -> None:
        """One step."""
        kind = _AUTOCAST.get(self.how.precision)
        with torch.autocast(self._device.type, dtype=kind, enabled=kind is not None):
            total = self.task.loss(self._model, batch).total
        self._optimizer.zero_grad()
        self._scaler.scale(total).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def run(self, batches: Iterable[Any], *, seconds: float = 0.0, least: int = 1) -> dict[str, float]:
        """Steps for so long, and so many at least: samples, wall time, and CPU time of this process."""
        under_way: deque[torch.cuda.Event] = deque()
        steps = samples = 0
        self._finish()
        began, cpu = time.perf_counter(), time.process_time()
        with self.how.switched():
            for batch in batches:
                self(batch)
                steps, samples = steps + 1, samples + self.task.count(batch)
                if self._device.type == "cuda":
                    under_way.append(_mark())
                    if len(under_way) > _AHEAD:
                        under_way.popleft().synchronize()
                if steps >= least and time.perf_counter() - began >= seconds:
                    break
        self._finish()
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu
        return {"steps": steps, "samples": samples, "seconds": spent, "cpu_seconds": cpu}

    def _finish(self) -> None:
        if self._device.type == "cuda":
            _mark().synchronize()


def _mark() -> torch.cuda.Event:
    """Where the device's queue ends now; who waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event
