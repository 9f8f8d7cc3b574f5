"""Segmentation of scrolls as the trainer sees it: which voxels of a scan are papyrus."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from stoker.errors import UsageError
from stoker.feed.arguments import expanded
from stoker.feed.transforms import VolumeTransform
from stoker.train.task import Feeds, Losses, Task, World
from stoker.workloads.made import made_once
from stoker.workloads.vesuvius.config import VesuviusConfig
from stoker.workloads.vesuvius.gallery import draw_slice
from stoker.workloads.vesuvius.inference import slide, write_prediction
from stoker.workloads.vesuvius.loss import segmentation_losses
from stoker.workloads.vesuvius.need import measure_step
from stoker.workloads.vesuvius.residence import MarkCovered, Residence, open_feed, settle
from stoker.workloads.vesuvius.scrolls import Scroll, find_scrolls, make_scrolls
from stoker.workloads.vesuvius.source import EPOCHS, ScrollSource, read_middle
from stoker.workloads.vesuvius.unet import UNet3d

if TYPE_CHECKING:
    from torchmetrics import Metric

_log = logging.getLogger(__name__)


class VesuviusTask(Task[VesuviusConfig]):
    """Find the sheets."""

    name = "vesuvius"
    better = ("dice", "max")

    def __init__(self, config: VesuviusConfig) -> None:
        super().__init__(config.settle())

    def build_model(self) -> UNet3d:
        """A U-Net of the config's widths."""
        return UNet3d(self.config.widths, deep_supervision=self.config.deep_supervision)

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        """Patches at random to train on, patches that cover the volumes kept apart to judge by."""
        config = self.config
        train, valid = split_scrolls(open_scrolls(config), config.valid)
        residence = self._settle(train, device, world.size)
        drawn = ScrollSource.at_random(
            train,
            patch=config.patch,
            samples=config.samples_per_epoch,
            foreground=config.foreground,
            seed=config.train.seed,
            epochs=EPOCHS,
        )
        covering = ScrollSource.by_grid(valid, patch=config.patch)
        judged = settle(valid, "disk" if residence.home == "disk" else "ram", None, device, world.size)
        return Feeds(
            train=open_feed(
                drawn, residence, self._transform(flip=config.flip),
                world=world, device=device, batch_size=config.train.batch_size, shuffle=True,
                workers=config.workers, seed=config.train.seed,
            ),
            valid=open_feed(
                covering, judged, MarkCovered(source=covering, then=self._transform(flip=0.0)),
                world=world, device=device, batch_size=config.train_batch_size * world.size, shuffle=False,
                workers=config.workers,
            ),
        )  # fmt: skip

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """Dice and cross entropy of the labelled voxels, as the config weighs them."""
        logits = model(batch["image"])
        with torch.autocast(batch["image"].device.type, enabled=False):
            dice, entropy = segmentation_losses(logits, batch["label"])
        total = (self.config.dice * dice + self.config.entropy * entropy).mean()
        parts = {"dice_loss": dice.detach().mean(), "entropy": entropy.detach().mean()}
        return Losses(total=total, samples=len(batch["image"]), parts=parts)

    def metrics(self) -> dict[str, "Metric"]:
        """Dice of voxels, and of surfaces within the tolerance."""
        from stoker.workloads.vesuvius.metrics import Dice, SurfaceDice

        return {"dice": Dice(), "surface_dice": SurfaceDice(self.config.tolerance)}

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, "Metric"]) -> None:
        """Both, of what lies above the threshold; each voxel once, though patches overlap."""
        found = model(batch["image"])[0].float().sigmoid() > self.config.threshold
        for metric in metrics.values():
            metric.update(found, batch["label"], batch["covered"])

    def picture(self, model: nn.Module, feeds: Feeds, folder: Path) -> list[Path]:
        """The middle slice of a volume that was not trained on; where asked for, such volumes whole."""
        config, device = self.config, feeds.train.device
        _, valid = split_scrolls(open_scrolls(config), config.valid)
        middle = read_middle(valid[0], config.patch[0])
        chances = np.concatenate([slab.numpy() for _, slab in self.predict(model, middle["image"], device)])
        at = config.patch[0] // 2
        drawn = draw_slice(middle["image"][at], middle["label"][at], chances[at], folder / "slice.png")
        if not config.predict:
            return [drawn]
        return [drawn] + [
            write_prediction(
                folder / "predictions" / f"{scroll.name}.zarr",
                scroll.volume,
                self.predict(model, scroll.volume, device),
            )
            for scroll in valid
        ]

    def predict(
        self, model: nn.Module, volume: Path | NDArray[np.uint8], device: torch.device
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """The chance of a sheet in every voxel of a volume, slab by slab, by a window that slides over it."""
        config = self.config
        return slide(
            model, volume, patch=config.patch, transform=self._transform(flip=0.0), device=device,
            overlap=config.overlap, batch_size=config.train_batch_size,
        )  # fmt: skip

    def _transform(self, flip: float) -> VolumeTransform:
        return VolumeTransform(flip=flip, mean=self.config.mean, std=self.config.std, field="image")

    def _settle(self, scrolls: list[Scroll], device: torch.device, ranks: int) -> Residence:
        """Load the volumes where they fit beside the model."""
        config = self.config
        reserve = None if config.reserve_gb is None else int(config.reserve_gb * 1e9)
        if reserve is None and device.type == "cuda" and config.resident in ("auto", "vram"):
            micro = config.train.micro_batch or config.train_batch_size
            try:
                reserve = measure_step(
                    self.build_model(), config.patch, micro, config.train.precision, device
                )
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                _log.warning("a step of %d patches does not fit the device: volumes stay in RAM", micro)
        return settle(scrolls, config.resident, reserve, device, ranks)


def open_scrolls(config: VesuviusConfig) -> list[Scroll]:
    """The scrolls that the config names, made first where it names none."""
    if config.data is not None:
        return find_scrolls(expanded(config.data))
    made = config.made
    return find_scrolls(made_once(made.name, lambda folder: make_scrolls(folder, made)))


def split_scrolls(scrolls: list[Scroll], valid: tuple[str, ...]) -> tuple[list[Scroll], list[Scroll]]:
    """To train on, and to judge by: whole volumes, since neighbouring patches of one are alike."""
    names = [scroll.name for scroll in scrolls]
    kept = valid or (names[-1],)
    if unknown := [name for name in kept if name not in names]:
        raise UsageError(f"no volume {unknown[0]!r} to validate on: there are {', '.join(names)}")
    train = [scroll for scroll in scrolls if scroll.name not in kept]
    if not train:
        raise UsageError(
            f"all volumes ({', '.join(names)}) are kept for validation: none is left to train on"
        )
    return train, [scroll for scroll in scrolls if scroll.name in kept]
