"""ResNet-50 on some classes of ImageNet, as the trainer sees it."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import StageFailed, UsageError
from stoker.feed import Feed
from stoker.feed.arguments import expanded
from stoker.feed.sources.class_folders import pick_classes
from stoker.feed.sources.images import ImageSource
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Selection, Stage, view_for
from stoker.feed.transforms import BatchTransform, ImageTransform
from stoker.train.task import Feeds, Losses, Task, World
from stoker.workloads.imagenet.config import ImagenetConfig
from stoker.workloads.imagenet.folders import TRAIN, VALID, make_folders
from stoker.workloads.imagenet.gallery import draw_guesses
from stoker.workloads.imagenet.model import ResNet50, load_weights, read_weights
from stoker.workloads.imagenet.resizing import Growing
from stoker.workloads.made import alone, made_once

if TYPE_CHECKING:
    from torchmetrics import Metric

# Of the channels of ImageNet's images, as torchvision's checkpoints expect them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_TOP = 5


class ImagenetTask(Task[ImagenetConfig]):
    """Tell what is in a photograph."""

    name = "imagenet"
    better = ("top1", "max")

    def __init__(self, config: ImagenetConfig) -> None:
        super().__init__(config)
        self._sources: tuple[ImageSource, ImageSource] | None = None

    @property
    def classes(self) -> list[str]:
        """The names of the classes that take part."""
        return self._open()[0].classes

    def build_model(self) -> nn.Module:
        """A ResNet-50 for so many classes, begun from a checkpoint where one is given."""
        model = ResNet50(len(self.classes))
        if self.config.weights is not None:
            load_weights(model, read_weights(expanded(self.config.weights)))
        return model

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        """Pixels, decoded once; crops and flips on the device, for the same classes on both sides."""
        config = self.config
        train, valid = self._open()

        def feed(source: ImageSource, transform: BatchTransform, **options: Any) -> Feed:
            return Feed(
                source, device=device, transform=transform, tier=config.tier, seed=config.train.seed,
                global_batch_size=config.train.batch_size, rank=world.rank, world_size=world.size, **options,
            )  # fmt: skip

        return Feeds(
            train=feed(train, self._cropped(), shuffle=True, drop_last=len(train) > config.train.batch_size),
            valid=feed(valid, self._whole()),
        )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """Cross-entropy with smoothed labels."""
        (images, labels), smoothing = batch, self.config.label_smoothing
        logits = model(self._sized(images))
        with torch.autocast(logits.device.type, enabled=False):
            total = functional.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        hits = (logits.detach().argmax(dim=1) == labels).float().mean()
        return Losses(total=total, samples=len(labels), parts={"accuracy": hits})

    def metrics(self) -> dict[str, "Metric"]:
        """Top-1 and top-5 accuracy over all images; of fewer classes than 5, top of all of them."""
        from torchmetrics.classification import MulticlassAccuracy

        count = len(self.classes)
        return {
            f"top{top}": MulticlassAccuracy(num_classes=count, top_k=min(top, count), average="micro")
            for top in (1, _TOP)
        }

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, "Metric"]) -> None:
        """Both, of the middle of each image."""
        images, labels = batch
        logits = model(self._sized(images)).float()
        for metric in metrics.values():
            metric.update(logits, labels)

    def largest_epoch(self, epochs: int) -> int:
        """That by which images have grown."""
        return 0 if self.config.start_size is None else min(self.config.grow_epochs, epochs - 1)

    def group_parameters(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """Norms and biases are not decayed."""
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return [
            {"params": [weight for weight in weights if weight.dim() > 1]},
            {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
        ]

    def picture(self, model: nn.Module, feeds: Feeds, folder: Path) -> list[Path]:
        """Photographs that were not trained on, framed green where they were told right."""
        # A batch of a size of its own, once: not worth compiling for.
        eager = torch.compiler.set_stance("force_eager") if self.config.train.compile else nullcontext()
        with eager:
            path = folder / "guesses.png"
            return [draw_guesses(model, self._open()[1], self._whole(), feeds.train.device, path)]

    def _sized(self, images: torch.Tensor) -> torch.Tensor:
        """The images, of which each size is compiled by itself: they grow through a few.

        With height and width left open, the step for the second size was not compiled after 200 s (H200,
        torch 2.11), where that for one size takes less than 53.
        """
        if self.config.train.compile:
            torch._dynamo.mark_static(images)
        return images

    def _open(self) -> tuple[ImageSource, ImageSource]:
        if self._sources is None:
            self._sources = open_sources(self.config)
        return self._sources

    def _cropped(self) -> BatchTransform:
        config = self.config
        crops = ImageTransform(
            size=config.image_size, scale=config.crop, flip=config.flip, mean=MEAN, std=STD,
            channels_last=config.train.channels_last,
        )  # fmt: skip
        if config.start_size is None:
            return crops
        return Growing(transform=crops, start=config.start_size, until=config.grow_epochs)

    def _whole(self) -> ImageTransform:
        config = self.config
        return ImageTransform(
            size=config.image_size, crop="center", flip=0.0, mean=MEAN, std=STD,
            channels_last=config.train.channels_last,
        )  # fmt: skip


def open_sources(config: ImagenetConfig) -> tuple[ImageSource, ImageSource]:
    """Those to train and to validate on, of the same classes; made or staged first where that is asked."""
    root, options = _root(config)
    classes: Any = config.classes
    if config.stage is not None:
        classes = _stage(config, root, options)
        root, options = config.stage, None
    size = (config.pixels, config.pixels)

    def source(part: str, classes: Any) -> ImageSource:
        keep = None if config.keep is None else expanded(config.keep) / part
        return ImageSource(
            f"{root}/{part}", classes=classes, seed=config.subset_seed, size=size, keep=keep, options=options
        )

    train = source(TRAIN, classes)
    if len(train.classes) < 2:
        raise UsageError(
            f"{root}/{TRAIN} has one class, {train.classes[0]}: to tell classes apart takes 2 or more; put a "
            "folder for each there"
        )
    return train, source(VALID, train.classes)


def _root(config: ImagenetConfig) -> tuple[str, dict[str, str] | None]:
    if config.data is not None:
        given = {"endpoint": config.endpoint, "region": config.region}
        options = {name: value for name, value in given.items() if value is not None}
        return config.data.rstrip("/"), options or None
    made = config.made
    folder = made_once(
        made.name,
        lambda folder: make_folders(
            folder, classes=made.classes, train_images=made.train_images, valid_images=made.valid_images,
            seed=made.seed, scale=made.scale,
        ),
    )  # fmt: skip
    return str(folder), None


def _stage(config: ImagenetConfig, root: str, options: dict[str, str] | None) -> list[str]:
    """Copy the classes that take part to a local folder; their names."""
    target = expanded(str(config.stage))
    stores = {part: Store(f"{root}/{part}", options=options) for part in (TRAIN, VALID)}
    classes = pick_classes(stores[TRAIN], config.classes, config.subset_seed)
    # Ranks that start together wait for the first, and find all files there.
    with alone(target.with_name(f".{target.name}.lock")):
        for part, store in stores.items():
            outcome = Stage(store, target / part, Selection(classes=classes), view_for(quiet=False)).run()
            if outcome.failed:
                file, why = next(iter(outcome.failed.items()))
                raise StageFailed(
                    f"{len(outcome.failed)} files of {store.url} are not in {target / part}: {file}: {why}. "
                    "Start again: what is there is kept."
                )
    return classes
