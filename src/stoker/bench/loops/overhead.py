"""The loop of `stoker bench overhead`: many small modules, AdamW, a DataLoader with 2 workers.

A script of its own, so that it can be run bare, by `stoker run`, and in TraceML's environment, where
Stoker is not. It times itself by its own clock and writes what it measured to `--out`.

The model has 158 modules and next to no arithmetic, so that a step is as short as eager PyTorch lets
it be; longer steps are padded in the root module with what holds no interpreter lock: a nap on a CPU,
a spinning kernel on a GPU. The loss is read in every step, so that what a tool costs the host is not
hidden behind a device that is still busy.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 8
BATCH = 8
BLOCKS = 12
PASSING = 10
WORKERS = 2
# One unit of padding on a GPU: long enough to count by, short against a millisecond.
_CYCLES = 10_000
# And on a CPU. Real products in its place took 2% more or less from one half second to the next on a
# shared machine, which is 200 us of a 10 ms step: four times what is to be told apart.
_NAP = 20e-6
_spin: Any = torch.cuda._sleep


class Samples(Dataset[torch.Tensor]):
    """Rows that cost nothing to make: what is measured is the machinery around them."""

    def __init__(self) -> None:
        self._row = torch.ones(WIDTH)

    def __len__(self) -> int:
        return 100_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """The same row whatever the index."""
        return self._row


class Model(nn.Module):
    """12 blocks of 13 modules, and as much padding as a step is to be long."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.body = nn.Sequential(*(_block() for _ in range(BLOCKS)))
        self.pad = 0
        self.to(device)
        self._on_gpu = device.type == "cuda"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The body, and the padding."""
        y: torch.Tensor = self.body(x)
        if self.pad and self._on_gpu:
            _spin(self.pad * _CYCLES)
        elif self.pad:
            time.sleep(self.pad * _NAP)
        return y


def _block() -> nn.Module:
    """One layer that learns among ten that pass through, as drop-path and dropout do at rate 0.

    Twelve learning layers and not fifty: fifty of them alone are a step of 5 ms on a CPU, and a step
    of 1 ms was asked for.
    """
    passing = [nn.Identity() for _ in range(PASSING)]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), *passing)


class Loop:
    """The model, its optimizer and its loader, ready to make steps under one tool or none."""

    def __init__(self, device: str, tool: str = "none") -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.device = torch.device(device)
        self._traceml: Any = None
        self._manual = tool == "traceml_manual"
        if tool != "none":
            self._traceml = import_module("traceml_ai")
            self._traceml.init(mode="manual" if self._manual else "auto")
        self.model = Model(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.loader: Any = DataLoader(
            Samples(), batch_size=BATCH, num_workers=WORKERS, pin_memory=self.device.type == "cuda"
        )
        if self._manual:
            self._traceml.wrap_forward(self.model)
            self.optimizer = self._traceml.wrap_optimizer(self.optimizer)
            self.loader = self._traceml.wrap_dataloader_fetch(self.loader)

    @property
    def modules(self) -> int:
        """How many modules the model has."""
        return sum(1 for _ in self.model.modules())

    def measure(
        self, *, pad: int, warm: int, steps: int, batches: Any = None, beside: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Make `warm` steps, then time `steps` steps.

        Workers are started for it, unless it is given an iterator whose workers run. `beside` are other
        processes at work for it.
        """
        self.model.pad = pad
        batches = iter(self.loader) if batches is None else batches
        make = self._steps if self._traceml is None else self._traced_steps
        make(batches, warm)
        self._synchronize()
        workers = _worker_pids(batches)
        busy = _busy_seconds()
        before = time.thread_time(), time.process_time(), _cpu_seconds(workers), _cpu_seconds(beside)
        began = time.perf_counter()
        make(batches, steps)
        self._synchronize()
        seconds = time.perf_counter() - began
        after = time.thread_time(), time.process_time(), _cpu_seconds(workers), _cpu_seconds(beside)
        by_all = _less(_busy_seconds(), busy)
        by_workers = _less(after[2], before[2])
        by_beside = _less(after[3], before[3])
        ours = None if by_workers is None else by_workers + (by_beside or 0.0) + after[1] - before[1]
        others = _less(by_all, ours)
        return {
            "steps": steps,
            "seconds": seconds,
            "cpu_training_thread": after[0] - before[0],
            "cpu_other_threads": (after[1] - before[1]) - (after[0] - before[0]),
            "cpu_workers": by_workers,
            "cpu_beside": by_beside,
            # Cores that somebody else had, the hypervisor included: how quiet it was here.
            "others_cores": None if others is None else max(0.0, others) / seconds,
        }

    def _steps(self, batches: Iterator[torch.Tensor], count: int) -> None:
        model, optimizer, device = self.model, self.optimizer, self.device
        for _ in range(count):
            x = next(batches).to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()

    def _traced_steps(self, batches: Iterator[torch.Tensor], count: int) -> None:
        """The same with TraceML's call in the loop, which it needs to see a plain PyTorch loop's steps."""
        model, optimizer, device, traceml = self.model, self.optimizer, self.device, self._traceml
        for _ in range(count):
            batch = next(batches)
            with traceml.trace_step(model):
                if self._manual:
                    x = traceml.wrap_h2d(batch).to(device, non_blocking=True)
                else:
                    x = batch.to(device, non_blocking=True)
                optimizer.zero_grad(set_to_none=True)
                loss = model(x).square().mean()
                (traceml.wrap_backward(loss) if self._manual else loss).backward()
                optimizer.step()
                loss.item()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _worker_pids(iterator: Any) -> list[int]:
    """The loader's workers, also behind a tool's own iterator; none where they cannot be found."""
    for _ in range(4):
        workers = getattr(iterator, "_workers", None)
        if workers is not None:
            return [worker.pid for worker in workers]
        iterator = getattr(iterator, "_iterator", None)
    return []


def _cpu_seconds(pids: Sequence[int]) -> float | None:
    """CPU time of all threads of these processes, to the nanosecond; None where /proc has it not."""
    if not pids:
        return None
    try:
        files = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(path.read_text().split()[0]) for path in files) / 1e9 if files else None
    except OSError:
        return None


def _less(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def _busy_seconds() -> float | None:
    """CPU time that anybody had of this machine, and what was stolen from it; None without /proc."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure every size that `--sizes` names, in order, and write the answers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tool", default="none", choices=["none", "traceml", "traceml_manual"])
    parser.add_argument("--sizes", required=True, help="JSON: [{name, pad, warm, steps}]")
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    loop = Loop(args.device, args.tool)
    measured = {}
    for size in json.loads(args.sizes):
        name = size.pop("name")
        measured[name] = loop.measure(**size)
    answer = {"modules": loop.modules, "torch": torch.__version__, "sizes": measured}
    args.out.write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
