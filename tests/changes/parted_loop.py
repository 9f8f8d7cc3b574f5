"""Runs training loops with batches in parts, or of another size, a forked process for each job.

python parted_loop.py < [{"changes": {...}, "loop": "plain", ...}, ...]   prints what came of each
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from stoker import changes
from stoker.errors import UsageError

ROWS = 44  # batches of 16, 16 and 12
X = torch.linspace(-1, 1, ROWS * 6).reshape(ROWS, 6).sin()
Y = X.sum(1, keepdim=True) + X[:, :1].square()


class Loop:
    """A model, an optimizer, a schedule by the update and one by the epoch; what they did."""

    def __init__(self, job: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.job = job
        norm = [nn.BatchNorm1d(8)] if job.get("norm") else []
        self.model = nn.Sequential(nn.Linear(6, 8), *norm, nn.Tanh(), nn.Linear(8, 1))
        self.loss = nn.MSELoss(reduction=job.get("reduction", "mean"))
        if job.get("optimizer_first"):
            self.make_optimizer()
        self.loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
        self.held_out = DataLoader(TensorDataset(X, Y), batch_size=11)
        if not job.get("optimizer_first"):
            self.make_optimizer()
        self.epochs = 3
        steps = self.epochs * len(self.loader)
        made: dict[str, Callable[[], lr_scheduler.LRScheduler]] = {
            "cosine": lambda: lr_scheduler.CosineAnnealingLR(self.optimizer, steps),
            "one cycle": lambda: lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=steps),
            "chained": lambda: lr_scheduler.SequentialLR(
                self.optimizer,
                [lr_scheduler.LinearLR(self.optimizer, 0.5), lr_scheduler.ExponentialLR(self.optimizer, 0.9)],
                [4],
            ),
        }
        self.by_update = made[job.get("schedule", "cosine")]()
        self.drawn: list[int] = []
        self.rates: list[float] = []
        self.weights: list[list[float]] = []

    def make_optimizer(self) -> None:
        """As asked for."""
        kind = getattr(torch.optim, self.job.get("optimizer", "AdamW"))
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        self.optimizer.register_step_post_hook(lambda *_: self.note())

    def note(self) -> None:
        """An update was made."""
        self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
        self.weights.append([float(w) for p in self.model.parameters() for w in p.detach().flatten()])

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Where asked for, with a backward pass within the backward pass."""
        if not self.job.get("checkpoint"):
            return self.model(x)  # type: ignore[no-any-return]
        return checkpoint(self.model, x.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]

    def run(self) -> None:
        """As many loops write it."""
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=bool(self.job.get("scaler")))
        before = self.job.get("zero", "before") == "before"
        for _ in range(self.epochs):
            for x, y in self.loader:
                self.drawn.append(len(x))
                loss = self.loss(self.predict(x), y)
                if before:
                    self.optimizer.zero_grad()
                scaler.scale(loss).backward()
                if self.job.get("clip"):
                    scaler.unscale_(self.optimizer)
                    nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)
                    nn.utils.clip_grad_value_(self.model.parameters(), 0.2)
                scaler.step(self.optimizer)
                scaler.update()
                if not before:
                    self.model.zero_grad() if self.job["zero"] == "model" else self.optimizer.zero_grad()
                self.by_update.step()
            with torch.no_grad():
                self.drawn += [-len(x) for x, _ in self.held_out]

    def run_by_epoch(self) -> None:
        """A schedule that steps once an epoch; epochs that are left early, in the middle of a batch."""
        by_epoch = lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        for _ in range(self.epochs):
            for at, (x, y) in enumerate(self.loader):
                self.drawn.append(len(x))
                self.optimizer.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimizer.step()
                if at == self.job.get("break_at"):
                    break
            by_epoch.step()

    def run_accumulating(self) -> None:
        """Updates every two batches."""
        for at, (x, y) in enumerate(self.loader):
            (self.loss(self.model(x), y) / 2).backward()
            if at % 2:
                self.optimizer.step()
                self.optimizer.zero_grad()

    def run_ahead(self) -> None:
        """Draws a batch while the one before is trained on."""
        batches = iter(self.loader)
        batch = next(batches, None)
        while batch is not None:
            (x, y), batch = batch, next(batches, None)
            self.optimizer.zero_grad()
            self.loss(self.model(x), y).backward()
            self.optimizer.step()

    def run_anew(self) -> None:
        """A new iterator for each batch."""
        for _ in range(3):
            x, y = next(iter(self.loader))
            self.optimizer.zero_grad()
            self.loss(self.model(x), y).backward()
            self.optimizer.step()

    def run_twice(self) -> None:
        """Two updates a batch."""
        for x, y in self.loader:
            for _ in range(2):
                self.optimizer.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimizer.step()

    def run_clearing(self) -> None:
        """Gradients are set to None by hand."""
        for x, y in self.loader:
            for p in self.model.parameters():
                p.grad = None
            self.loss(self.model(x), y).backward()
            self.optimizer.step()

    def run_closure(self) -> None:
        """The optimizer makes the loss."""
        for x, y in self.loader:
            self.optimizer.step(lambda x=x, y=y: self.loss(self.model(x), y))

    def run_grad(self) -> None:
        """Gradients without backward."""
        for x, y in self.loader:
            parameters = list(self.model.parameters())
            for p, g in zip(
                parameters, torch.autograd.grad(self.loss(self.model(x), y), parameters), strict=True
            ):
                p.grad = g
            self.optimizer.step()

    def run_zipped(self) -> None:
        """Two loaders feed one update."""
        for (x, y), (z, _) in zip(self.loader, DataLoader(TensorDataset(X, Y), batch_size=8), strict=False):
            self.optimizer.zero_grad()
            (self.loss(self.model(x), y) + self.model(z).square().mean()).backward()
            self.optimizer.step()

    def run_skipping(self) -> None:
        """Batches that hold a certain row are not trained on."""
        for _ in range(self.epochs):
            for x, y in self.loader:
                if self.job["skips"] and bool((x == X[20]).all(1).any()):
                    continue
                self.optimizer.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimizer.step()


def train(job: dict[str, Any]) -> dict[str, Any]:
    """What came of a job."""
    loop = Loop(job)
    getattr(loop, "run" if job.get("loop") is None else f"run_{job['loop']}")()
    return {
        "drawn": loop.drawn,
        "rates": loop.rates,
        "weights": loop.weights,
        "batches": len(loop.loader),
        "last_rate": float(loop.optimizer.param_groups[0]["lr"]),
        "schedule": loop.by_update.last_epoch,
    }


def in_a_fork(job: dict[str, Any], answer: Path) -> dict[str, Any]:
    """What came of it: changes are for a whole process."""
    pid = os.fork()
    if not pid:
        try:
            changes.put(job["changes"])
            told = {**train(job), "told": changes.told(job["changes"])}
        except UsageError as error:
            told = {"error": str(error)}
        except BaseException:  # noqa: BLE001  (a copy of the parent must not go on as it)
            traceback.print_exc()
            os._exit(1)
        answer.write_text(json.dumps(told))
        os._exit(0)
    os.waitpid(pid, 0)
    return json.loads(answer.read_text())  # type: ignore[no-any-return]


if __name__ == "__main__":
    torch.set_num_threads(1)  # a fork beside threads that compute would hang
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # imports the compiler, once for all forks
    with tempfile.TemporaryDirectory() as folder:
        jobs = json.load(sys.stdin)
        done = [in_a_fork(job, Path(folder) / f"{at}") for at, job in enumerate(jobs)]
        json.dump(done, sys.stdout)
