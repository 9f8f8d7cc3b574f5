"""Everything that an ImageNet training can be told. The defaults make their own data and end on a CPU."""

from dataclasses import dataclass, field

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig, ScheduleConfig, Tier, TrainConfig, check


@dataclass(frozen=True, kw_only=True)
class MadeConfig:
    """The set that is made where none is given; images are counted for each class."""

    classes: int = 20
    train_images: int = 48
    valid_images: int = 8
    # Of the sides of the real set's photographs, some 500 pixels.
    scale: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("train_images", 1), ("valid_images", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"made.{name} is {getattr(self, name)}: it must be {least} or more")
        if not 0 < self.scale <= 4:
            raise UsageError(f"made.scale is {self.scale:g}: it must be above 0, at most 4")

    @property
    def name(self) -> str:
        """A folder's name that tells all of them."""
        return (
            f"imagenet_{self.classes}classes_{self.train_images}+{self.valid_images}"
            f"_scale{self.scale:g}_seed{self.seed}"
        )


def _train() -> TrainConfig:
    return TrainConfig(
        epochs=8,
        batch_size=32,
        log_every=10,
        optimizer=OptimizerConfig(name="sgd", lr=0.05, weight_decay=5e-5, nesterov=True),
        schedule=ScheduleConfig(name="cosine", warmup=0.1),
    )


@dataclass(frozen=True, kw_only=True)
class ImagenetConfig:
    """An ImageNet training."""

    # A folder or an object store's address with `train` and `val` in it, each with a folder a class; None:
    # the set described by `made`, made on first use.
    data: str | None = None
    # Of an S3 store that is not Amazon's; credentials come from the environment (AWS_ACCESS_KEY_ID, …).
    endpoint: str | None = None
    region: str | None = None
    # A local folder: `stage` copies the classes there first, `keep` keeps what is read as it is read.
    stage: str | None = None
    keep: str | None = None
    made: MadeConfig = field(default_factory=MadeConfig)
    # So many classes take part, by their seed; None: all.
    classes: int | None = 10
    subset_seed: int = 42
    # Pixels a side that images are decoded to, once, and kept at; crops are cut from these on the device.
    pixels: int = 72
    # Pixels a side that the model sees, from `start_size` in epoch 0 on, growing until epoch `grow_epochs`.
    image_size: int = 64
    start_size: int | None = None
    grow_epochs: int = 0
    # The least and the greatest area of a random crop, as shares of the image, and the chance of a flip.
    crop: tuple[float, float] = (0.25, 1.0)
    flip: float = 0.5
    label_smoothing: float = 0.1
    # A checkpoint to begin with: of torchvision's ResNet-50, or `model.safetensors` of a training here.
    weights: str | None = None
    # Where samples wait: auto, or the highest to use of vram, spread, window, ram and source.
    tier: Tier = "auto"
    train: TrainConfig = field(default_factory=_train)

    def __post_init__(self) -> None:
        check(self, "label_smoothing", 0 <= self.label_smoothing < 1, "from 0 to below 1")
        check(self, "flip", 0 <= self.flip <= 1, "a chance from 0 to 1")
        check(self, "crop", 0 < self.crop[0] <= self.crop[1] <= 1, "two rising shares above 0, at most 1")
        check(self, "classes", self.classes is None or self.classes >= 2, "2 or more, or left out")
        for name in ("stage", "keep", "weights"):
            check(self, name, "://" not in (getattr(self, name) or ""), "a path of this machine")
        for name in ("subset_seed", "grow_epochs"):
            check(self, name, getattr(self, name) >= 0, "0 or more")
        if not 1 <= self.image_size <= self.pixels:
            raise UsageError(
                f"image_size is {self.image_size} of images kept at {self.pixels} pixels: it must be from 1 "
                "to `pixels`, which can be raised"
            )
        if self.start_size is not None and not 1 <= self.start_size <= self.image_size:
            raise UsageError(
                f"start_size is {self.start_size}: it must be from 1 to image_size, {self.image_size}"
            )
        if self.start_size is not None and self.grow_epochs < 1:
            raise UsageError("start_size without grow_epochs: say until which epoch the images grow")
        if self.stage is not None and self.keep is not None:
            raise UsageError("stage and keep: take one; stage copies first, keep copies as it is read")
        for name in ("endpoint", "region", "stage", "keep"):
            if getattr(self, name) is not None and self.data is None:
                raise UsageError(f"{name} without data: made images are local already; say where others are")
