"""SAR autoencoders as the trainer sees them: a patch in, the same patch out."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker.feed import Feed
from stoker.feed.arguments import expanded
from stoker.train.task import Feeds, Losses, Task, World
from stoker.workloads.made import made_once
from stoker.workloads.sar.config import SarConfig
from stoker.workloads.sar.gallery import draw_gallery
from stoker.workloads.sar.models import MODELS
from stoker.workloads.sar.shards import make_shards
from stoker.workloads.sar.similarity import ReconstructionLoss
from stoker.workloads.sar.source import SarSource, split

if TYPE_CHECKING:
    from torchmetrics import Metric

# Patches in the picture at the end.
_PICTURED = 4


class SarTask(Task[SarConfig]):
    """Rebuild patches from their codes."""

    name = "sar"
    better = ("psnr", "max")

    def __init__(self, config: SarConfig) -> None:
        super().__init__(config)
        self._loss = ReconstructionLoss(mse=config.mse, ssim=config.ssim)

    def build_model(self) -> nn.Module:
        """The model that the config names."""
        return MODELS[self.config.model](base=self.config.base, latent=self.config.latent)

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        """Nine tenths to train on, the rest to judge by, split by a seed of their own."""
        config = self.config
        source = open_source(config)
        train, valid = split(len(source), share=config.train_share, seed=config.split_seed)
        scaled = None if (config.low, config.high) == (0.0, 1.0) else Scale(config.low, config.high)
        limit = max(1, int(len(train) * config.subset))

        def feed(**options: Any) -> Feed:
            return Feed(
                source, device=device, transform=scaled, tier=config.tier, seed=config.train.seed,
                global_batch_size=config.train.batch_size, rank=world.rank, world_size=world.size, **options,
            )  # fmt: skip

        return Feeds(
            train=feed(subset=train, limit=limit, shuffle=True, drop_last=limit > config.train.batch_size),
            valid=feed(subset=valid),
        )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """MSE and SSIM, as the config weighs them."""
        parts = self._loss(model(batch), batch)
        return Losses(total=parts.pop("loss"), samples=len(batch), parts=parts)

    def metrics(self) -> dict[str, "Metric"]:
        """PSNR in dB and SSIM, of values from 0 to 1."""
        from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure

        return {
            "psnr": PeakSignalNoiseRatio(data_range=1.0),
            "ssim": StructuralSimilarityIndexMeasure(data_range=1.0),
        }

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, "Metric"]) -> None:
        """Both, of the rebuilt patches."""
        rebuilt = model(batch).float()
        for metric in metrics.values():
            metric.update(rebuilt, batch)

    def picture(self, model: nn.Module, feeds: Feeds, folder: Path) -> list[Path]:
        """Patches that were not trained on, as they are, as they were rebuilt, and where these differ."""
        config, source = self.config, open_source(self.config)
        _, valid = split(len(source), share=config.train_share, seed=config.split_seed)
        chosen = source.read(valid[:_PICTURED]).to(feeds.train.device)
        patches = Scale(config.low, config.high)(chosen)
        return [draw_gallery(patches, model(patches), folder / "reconstructions.png")]


class Scale:
    """Values of a batch from `low` to `high` become 0 to 1; what lies beyond is cut off there."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch, scaled."""
        return ((batch - self.low) / (self.high - self.low)).clamp_(0, 1)


def open_source(config: SarConfig) -> SarSource:
    """The shards that the config names, made first where it names none."""
    if config.data is not None:
        return SarSource(expanded(config.data), config.pattern)
    made = config.made
    folder = made_once(
        made.name,
        lambda folder: make_shards(
            folder, samples=made.samples, files=made.files, seed=made.seed, side=made.side, looks=made.looks
        ),
    )
    return SarSource(folder)
