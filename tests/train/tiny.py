"""A tiny task of our own: a line to learn, with dropout, so that a wrong generator shows in the weights.

Run as a script it trains into a folder: what the tests kill, stop and start again.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import Dataset

from stoker.feed import Feed
from stoker.train.config import OptimizerConfig, SaveConfig, TrainConfig
from stoker.train.config_file import load
from stoker.train.meeting import Meeting
from stoker.train.task import Better, Feeds, Losses, Task, World

SAMPLES = 52


def plain(**settings: Any) -> TrainConfig:
    """Settings for a test: nothing is looked at, logged elsewhere or pictured unless it is asked for."""
    given: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 8,
        "seed": 5,
        "device": "cpu",
        "preflight": False,
        "picture": False,
        "loggers": (),
        "log_every": 5,
        "save": SaveConfig(every=2),
        "optimizer": OptimizerConfig(name="adamw", lr=1e-2),
    }
    return TrainConfig(**{**given, **settings})


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """What the tests vary."""

    norm: str = "batch"
    dropout: float = 0.2
    # A forward of more samples runs out of memory, on this rank or (None) on all; 0: never.
    most: int = 0
    short_rank: int | None = None
    drop_last: bool = False
    slow_s: float = 0.0
    # What rank 0 has still to do when all else has ended: a logger's upload, say.
    slow_end_s: float = 0.0
    # Batch statistics that nothing hangs on; and where each rank writes those that it judges with.
    beside: bool = False
    judged: str | None = None
    samples: int = SAMPLES
    # In this step, counted from 1, one rank has no memory for the exchange of gradients; 0: never.
    no_room: int = 0
    train: TrainConfig = field(default_factory=plain)


class Line(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """x of 6 numbers, y their weighted sum."""

    def __init__(self, count: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 6, generator=generator)
        self.y = (self.x @ torch.arange(1.0, 7.0))[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def fingerprint(self) -> str:
        """The same in a test and in the script that it starts, where this class is another module's."""
        return f"line {len(self)}"


class Beside(nn.Module):
    """Keeps statistics of what goes through, and gives it back as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.norm(values)
        return values


class Tiny(Task[TinyConfig]):
    """Two layers; what it saw is kept for the tests."""

    name = "tiny"
    better: ClassVar[Better] = ("mae", "min")

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.seen: list[list[float]] = []
        self.calls = 0
        self.epochs: list[int] = []

    def build_model(self) -> nn.Module:
        norm: nn.Module = nn.BatchNorm1d(12) if self.config.norm == "batch" else nn.LayerNorm(12)
        more = [Beside()] if self.config.beside else []
        return nn.Sequential(
            nn.Linear(6, 12), norm, nn.ReLU(), nn.Dropout(self.config.dropout), nn.Linear(12, 1), *more
        )

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        config = self.config.train
        shared: dict[str, Any] = {
            "device": device,
            "rank": world.rank,
            "world_size": world.size,
            "workers": 0,
        }
        train = Feed(
            Line(self.config.samples), global_batch_size=config.batch_size, shuffle=True, seed=config.seed,
            drop_last=self.config.drop_last, **shared,
        )  # fmt: skip
        return Feeds(train=train, valid=Feed(Line(18), global_batch_size=8, **shared))

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        x, y = batch
        self.calls += 1
        if self.config.slow_s:
            time.sleep(self.config.slow_s)
        predicted = model(x)
        here = self.config.short_rank in (None, int(os.environ.get("RANK", "0")))
        if here and self.config.most and len(x) > self.config.most and model.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if model.training:
            self.seen.append(y[:, 0].tolist())
        loss = nn.functional.mse_loss(predicted, y)
        return Losses(total=loss, samples=len(x), parts={"off": (predicted - y).abs().mean()})

    def metrics(self) -> dict[str, Any]:
        from torchmetrics import MeanAbsoluteError

        return {"mae": MeanAbsoluteError()}

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
        x, y = batch
        metrics["mae"].update(model(x), y)
        if self.config.judged is not None:
            values = [value.tolist() for value in model.buffers()]
            with Path(f"{self.config.judged}-{os.environ.get('RANK', '0')}").open("a") as out:
                out.write(f"{values}\n")

    def begin_epoch(self, epoch: int, feeds: Feeds) -> None:
        self.epochs.append(epoch)

    def picture(self, model: nn.Module, feeds: Feeds, folder: Path) -> list[Path]:
        path = folder / "picture.txt"
        path.write_text(str(float(model(torch.ones(1, 6)))))
        return [path]


def main() -> None:
    """`tiny.py FOLDER [--kill STEPS] [key=value …]`: train; die by SIGKILL in the forward after so many."""
    from stoker.train.fit import fit

    folder, *words = sys.argv[1:]
    kill = 0
    if words and words[0] == "--kill":
        kill, words = int(words[1]), words[2:]
    task = Tiny(load(TinyConfig, None, words))
    if kill:
        inner = task.loss

        def loss(model: nn.Module, batch: Any) -> Losses:
            if task.calls == kill and model.training:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(model, batch)

        task.loss = loss  # type: ignore[method-assign]
    if task.config.no_room and os.environ.get("RANK") == "1":
        tried: list[int] = []

        def try_room(self: Meeting, weights: Any) -> None:
            tried.append(1)
            if len(tried) == task.config.no_room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 128 MiB")

        Meeting.try_room = try_room  # type: ignore[method-assign]
    fitted = fit(task, out=Path(folder))
    if fitted.rank == 0:
        time.sleep(task.config.slow_end_s)
    sys.exit(fitted.exit_code)


if __name__ == "__main__":
    main()
