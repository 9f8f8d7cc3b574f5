"""What the trainer asks of a workload: a model, feeds, a loss, and how it is judged. No loop is in here.

    class Denoise(Task[DenoiseConfig]):
        name = "denoise"
        better = ("psnr", "max")

        def build_model(self) -> nn.Module: ...
        def open_feeds(self, world: World, device: torch.device) -> Feeds: ...
        def loss(self, model: nn.Module, batch: Any) -> Losses: ...
        def metrics(self) -> dict[str, Metric]: ...
        def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Metric]) -> None: ...

One batch of the training feed is one optimizer step: open it with `global_batch_size=` of
`config.train.batch_size`.
The trainer cuts a rank's share of it into micro-batches (`config.train.micro_batch`), which is what
accumulation is here; `loss` is called once for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from stoker.feed import Feed
from stoker.train.config import TrainConfig

if TYPE_CHECKING:
    from torchmetrics import Metric

Better = tuple[str, Literal["max", "min"]]


class Config(Protocol):
    """A workload's own frozen dataclass; the trainer reads `train` of it and no more."""

    @property
    def train(self) -> TrainConfig:
        """How it is trained."""


C = TypeVar("C", bound=Config)


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank, of how many: give both to `Feed(rank=…, world_size=…)`."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Feeds:
    """What is trained on, and what is judged on; both split themselves among the ranks."""

    train: Feed
    valid: Feed | None = None

    def close(self) -> None:
        """Let go of memory, readers and workers."""
        self.train.close()
        if self.valid is not None:
            self.valid.close()


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a micro-batch gives: `total` is differentiated, `parts` are for the log.

    All are means over the `samples` of the batch that was handed in, as tensors that are still on the device:
    reading one in the step (`.item()`) makes the host wait for the device.
    """

    total: Tensor
    samples: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Task(ABC, Generic[C]):
    """One workload with its settings, as the trainer sees it."""

    name: ClassVar[str]
    # What makes a checkpoint the best, and what ends a training early: a name of `metrics`, or "loss".
    better: ClassVar[Better] = ("loss", "min")

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new model on the CPU; its first weights come from torch's generator, which is seeded before."""

    @abstractmethod
    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        """The feeds of this rank, whose batches lie on `device`."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """The loss of a (micro-)batch; `model` is called as it is given (precision, compile, ranks)."""

    @abstractmethod
    def metrics(self) -> dict[str, "Metric"]:
        """New torchmetrics by name; {} where the loss is all there is to judge by."""

    @abstractmethod
    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, "Metric"]) -> None:
        """Update the metrics with a validation batch; called without gradients and in eval mode."""

    # --- what need not be given -------------------------------------------------------------------

    def group_parameters(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """The optimizer's groups; each may have an `lr` or a `weight_decay` of its own."""
        return [{"params": [weight for weight in model.parameters() if weight.requires_grad]}]

    def begin_epoch(self, epoch: int, feeds: Feeds) -> None:
        """Called before each epoch's first batch, and with the epoch stood in after a resume."""

    def largest_epoch(self, epochs: int) -> int:
        """Of so many epochs, the first whose samples are as large as they get: by it memory is predicted."""
        return 0

    def count(self, batch: Any) -> int:
        """Samples in a batch: the length of its first tensor."""
        from stoker.train.microbatch import count_samples

        return count_samples(batch)

    def cut(self, batch: Any, start: int, stop: int) -> Any:
        """Samples start to stop - 1 of a batch: every tensor in it, cut along its first dimension."""
        from stoker.train.microbatch import cut_samples

        return cut_samples(batch, start, stop)

    def picture(self, model: nn.Module, feeds: Feeds, folder: Path) -> list[Path]:
        """Draw what was learnt, at the end, on rank 0; the files that were written.

        Called without gradients and in eval mode, with the best weights there were. Other ranks wait for it,
        and take no part: a torchmetric here needs `sync_on_compute=False`.
        """
        return []


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A system that `stoker train NAME` knows; each package in stoker/workloads offers one as `WORKLOAD`."""

    name: str
    about: str
    # A frozen dataclass with a default for everything: no arguments are needed, and data are made.
    config: type[Any]
    task: Callable[[Any], Task[Any]]
    # `stoker train NAME --compare`: trains what is to be compared under the folder, anew where that is asked;
    # the page it wrote.
    compare: Callable[[Any, Path, bool], Path] | None = None
