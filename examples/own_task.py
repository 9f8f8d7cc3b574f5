"""A task of one's own under Stoker's trainer: noisy waves in, clean ones out. Takes seconds on a CPU.

python examples/own_task.py                             # again: goes on where it stopped
python examples/own_task.py train.epochs=20 width=256    # settings by name
torchrun --nproc-per-node 2 examples/own_task.py        # the same batches, over two ranks
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import stoker
from stoker.train import Feeds, Losses, Task, TrainConfig, World, load
from stoker.train.config import OptimizerConfig
from stoker.train.fit import fit


@dataclass(frozen=True, kw_only=True)
class Settings:
    width: int = 128
    samples: int = 2000
    noise: float = 0.5
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            epochs=10, batch_size=50, log_every=40, optimizer=OptimizerConfig(name="adamw", lr=3e-3)
        )
    )


class Waves(Dataset[tuple[Tensor, Tensor]]):
    """Sample k is the same in every process: what it draws comes from k."""

    def __init__(self, first: int, count: int, noise: float) -> None:
        self.first, self.count, self.noise = first, count, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(self.first + index)
        rate, shift = torch.rand(2, generator=draw)
        clean = torch.sin(torch.linspace(0, 4 * math.pi, 64) * (0.5 + rate) + 6 * shift)
        return clean + self.noise * torch.randn(64, generator=draw), clean


class Denoise(Task[Settings]):
    name = "denoise"
    better = ("error", "min")  # what the best checkpoint is best by

    def build_model(self) -> nn.Module:
        width = self.config.width
        return nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64))

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        settings = self.config
        shared: dict[str, Any] = {
            "global_batch_size": settings.train.batch_size,
            "device": device,
            "rank": world.rank,
            "world_size": world.size,
        }
        return Feeds(
            train=stoker.Feed(Waves(0, settings.samples, settings.noise), shuffle=True, **shared),
            valid=stoker.Feed(Waves(10**6, 200, settings.noise), **shared),
        )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        noisy, clean = batch
        return Losses(total=nn.functional.mse_loss(model(noisy), clean), samples=len(noisy))

    def metrics(self) -> dict[str, Any]:
        from torchmetrics import MeanSquaredError

        return {"error": MeanSquaredError()}

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
        noisy, clean = batch
        metrics["error"].update(model(noisy), clean)


if __name__ == "__main__":
    settings = load(Settings, None, sys.argv[1:])
    fitted = fit(Denoise(settings), out=Path("runs/denoise"))
    if fitted.rank == 0:
        print(f"error {fitted.metrics['error']:.3f}; the noise's own is {settings.noise**2:.3f}")
