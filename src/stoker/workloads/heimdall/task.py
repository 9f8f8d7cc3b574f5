"""Localisation as the trainer sees it: what receivers measured in, a position and its spread out."""

import json
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from stoker.facts import words
from stoker.feed import Feed
from stoker.feed.sources.sql import SqlSource
from stoker.feed.whole_file import whole_file
from stoker.train.task import Feeds, Losses, Task, World
from stoker.workloads.heimdall.config import HeimdallConfig
from stoker.workloads.heimdall.locator import Estimate, Locator, surprise
from stoker.workloads.heimdall.map import Map
from stoker.workloads.heimdall.schema import fill_database
from stoker.workloads.heimdall.source import Campaign, bytes_per_thousand, find_campaign, open_source
from stoker.workloads.made import made_once

if TYPE_CHECKING:
    from torchmetrics import Metric

_FILE = "radio.db"


class RadioFeed(Feed):
    """A feed that also says what 1,000 of its samples take, and that a CPU has no memory of its own."""

    def __init__(self, source: SqlSource, **options: Any) -> None:
        super().__init__(source, **options)
        self.source = source

    @property
    def why(self) -> str:
        """Where the samples are held, and why there."""
        alone = "" if self.device.type == "cuda" else "; not vram: the device is the CPU"
        return f"{super().why}{alone}; 1,000 samples take {words.size(bytes_per_thousand(self.source))}"


class HeimdallTask(Task[HeimdallConfig]):
    """Find the transmitter."""

    name = "heimdall"
    better = ("median_m", "min")

    @cached_property
    def url(self) -> str:
        """The database; filled first where the config says so."""
        config = self.config
        if config.database is None:
            folder = made_once(
                config.made.name, lambda folder: fill_database(f"sqlite:///{folder / _FILE}", config.made)
            )
            return f"sqlite:///{folder / _FILE}"
        if config.fill:
            fill_database(config.database, config.made)
        return config.database

    @cached_property
    def campaign(self) -> Campaign:
        """What the datasets have in common."""
        return find_campaign(self.url, self.config.dataset_ids)

    def build_model(self) -> Locator:
        """Attention over the receivers, scaled to the datasets' square."""
        config = self.config
        return Locator(
            area_m=self.campaign.area_m, width=config.width, layers=config.layers, heads=config.heads
        )

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        """All samples in the highest memory that they fit into, read once by one statement."""
        config = self.config
        train = self._source("train")
        size = config.train.batch_size

        def feed(source: SqlSource, **options: Any) -> RadioFeed:
            return RadioFeed(
                source, device=device, seed=config.train.seed,
                tier="vram" if config.preload_to_gpu else "ram",
                reserve=None if config.reserve_gb is None else int(config.reserve_gb * 1e9),
                global_batch_size=size, rank=world.rank, world_size=world.size, **options,
            )  # fmt: skip

        return Feeds(
            train=feed(train, shuffle=True, drop_last=len(train) > size), valid=feed(self._source("valid"))
        )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """How surprising the true positions are (Gaussian), and by how far they are missed, in km."""
        estimate, position = _estimate(model, batch)
        with torch.autocast(position.device.type, enabled=False):
            each = surprise(estimate, position)
        error = (estimate.mean.detach() - position).norm(dim=-1).mean()
        return Losses(total=each.mean(), samples=len(position), parts={"error_km": error})

    def metrics(self) -> dict[str, "Metric"]:
        """Median and 95th percentile of the error in metres; the share inside the 90% ellipse."""
        return _metrics()

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, "Metric"]) -> None:
        """All of them, of the batch's estimates."""
        estimate, position = _estimate(model, batch)
        for metric in metrics.values():
            metric.update(estimate, position)

    def picture(self, model: nn.Module, feeds: Feeds, folder: Path) -> list[Path]:
        """A map of samples that were not trained on, and where the samples were held, with what they took."""
        estimates, positions = self._locate(model, feeds)
        metrics = _metrics(sync_on_compute=False)  # other ranks draw nothing, and would be waited for
        for metric in metrics.values():
            metric.update(estimates, positions)
        told = {name: float(metric.compute()) for name, metric in metrics.items()}
        title = (
            f"{len(positions):,} samples: median error {told['median_m']:,.0f} m, "
            f"95% within {told['p95_m']:,.0f} m, {told['coverage90']:.0%} inside the 90% ellipse"
        )
        drawn = Map(
            side_km=self.campaign.area_m / 1000,
            stations=self.campaign.stations / 1000,
            estimate=estimates,
            position=positions,
            title=title,
        )
        train = self._source("train")
        held = {
            "schema": 1,
            **told,
            "train_samples": len(train),
            "bytes_per_1000_samples": bytes_per_thousand(train),
            "tier": feeds.train.tier,
            "why": feeds.train.why,
        }
        with whole_file(folder / "errors.json") as file:
            file.write(json.dumps(held, indent=1).encode())
        return [drawn.write(folder / "map.svg"), folder / "errors.json"]

    def _locate(self, model: nn.Module, feeds: Feeds) -> tuple[Estimate, Tensor]:
        """Estimates and truths of the samples to validate on, on the CPU."""
        source = self._source("valid")
        means, lowers, positions = [], [], []
        feed = Feed(
            source,
            self.config.train.batch_size,
            device=feeds.train.device,
            tier="source",
            rank=0,
            world_size=1,
        )
        with closing(feed):
            for batch in feed:
                estimate, position = _estimate(model, batch)
                means.append(estimate.mean.cpu())
                lowers.append(estimate.lower.cpu())
                positions.append(position.cpu())
        return Estimate(torch.cat(means), torch.cat(lowers)), torch.cat(positions)

    def _source(self, split: Literal["train", "valid"]) -> SqlSource:
        return open_source(self.url, self.campaign, split, self.config.dataset_ids)


def _metrics(**options: Any) -> dict[str, "Metric"]:
    from stoker.workloads.heimdall.metrics import Coverage, ErrorQuantile

    return {
        "median_m": ErrorQuantile(0.5, **options),
        "p95_m": ErrorQuantile(0.95, **options),
        "coverage90": Coverage(0.9, **options),
    }


def _estimate(model: nn.Module, batch: Any) -> tuple[Estimate, Tensor]:
    """The model's estimates, and the true positions in km."""
    position = torch.stack([batch["x_m"], batch["y_m"]], dim=1) / 1000
    return model(batch["features"], batch["iq"], batch["heard"]), position
