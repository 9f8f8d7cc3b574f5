"""What `stoker bench resumes` trains: a model that keeps the ledger of its updates, and whose sums are exact.

Every sample has an entry of a weight, `entered`, and puts its share of the loss's mean on that entry's
gradient: so the gradient that an update is made with says which samples entered it, and how often, whatever
ranks and micro-batches it was summed from. It is written into a buffer of the model before each update, and
is in every checkpoint with the weights.

Two more parts learn. `exact` has numbers of so few bits that no sum is ever rounded, in whatever order it
is made: samples are small whole numbers, weights are used to the sixteenth, and all batches, shares and
micro-batches are powers of two. So its losses and weights are the same bits for every number of ranks and
every micro-batch. `plain` is floating point as ever, with dropout where it is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stoker.errors import BenchFailed
from stoker.feed import Feed
from stoker.feed.sources.npy import NpySource
from stoker.train.config import EmaConfig, OptimizerConfig, SaveConfig, TrainConfig
from stoker.train.task import Feeds, Losses, Task, World

# The last batch of an epoch has two samples: with four ranks two of them have none, and repeats are handed
# out that must not count.
SAMPLES, BATCH, EPOCHS = 98, 16, 4
STEPS_PER_EPOCH = -(-SAMPLES // BATCH)
STEPS = EPOCHS * STEPS_PER_EPOCH
# Numbers in a sample: its own number, those that `exact` learns from, and the rest. 18 KB are enough to be
# read past the page cache; for a card's copy engines to take them, 66 KB.
NUMBERS = {"cpu": 4608, "cuda": 16640}
FEATURES = 8
SHARDS = 7
VALIDATED = 18
# `exact` uses its weights to the sixteenth; with errors below 64 the sum of 16 squares has 24 bits.
_GRID, _MOST = 16.0, 64.0
# What the model needs of a card: known, so that the feed need not begin a tier lower.
_RESERVE = 1 << 30


def make_rows(salt: int, device: str) -> NDArray[np.int32]:
    """All samples of one set: each begins with its number."""
    draw = np.random.default_rng(salt)
    rows = draw.integers(-500, 500, (SAMPLES, NUMBERS[device]), np.int32)
    rows[:, 1 : 1 + FEATURES] = draw.integers(-2, 3, (SAMPLES, FEATURES), np.int32)
    rows[:, 0] = np.arange(SAMPLES)
    return rows


def write_shards(folder: Path, salt: int, device: str) -> None:
    """The set as files."""
    folder.mkdir(parents=True)
    for at, part in enumerate(np.array_split(make_rows(salt, device), SHARDS)):
        np.save(folder / f"{at}.npy", part)


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """Which set, where its samples wait, and how it is trained."""

    data: Path
    salt: int
    tier: str = "source"
    cache: Path | None = None
    workers: int = 0
    shuffle: str = "full"
    dropout: float = 0.0
    train: TrainConfig = field(default_factory=TrainConfig)


def settings(*, device: Literal["cpu", "cuda"], seed: int, micro_batch: int) -> TrainConfig:
    """How it is trained: a line of the log for every step, a checkpoint after every other."""
    return TrainConfig(
        epochs=EPOCHS,
        batch_size=BATCH,
        micro_batch=micro_batch,
        seed=seed,
        device=device,
        preflight=False,
        picture=False,
        loggers=(),
        log_every=1,
        save=SaveConfig(every=2),
        ema=EmaConfig(decay=0.9),
        optimizer=OptimizerConfig(name="sgd", lr=2.0**-7, momentum=0.9),
    )


class LedgerModel(nn.Module):
    """The three parts, and the ledger: a row for each update, in it what each sample was weighted with."""

    journal: Tensor
    updates: Tensor

    def __init__(self, numbers: int = NUMBERS["cpu"], dropout: float = 0.0) -> None:
        super().__init__()
        self.exact = nn.Parameter(torch.zeros(FEATURES))
        self.entered = nn.Parameter(torch.zeros(SAMPLES))
        self.plain = nn.Sequential(
            nn.Linear(numbers - 1, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, 1)
        )
        self.register_buffer("journal", torch.zeros(STEPS, SAMPLES))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each sample: its exact loss, its plain loss, and 0 with a gradient of 1 on its entry."""
        numbers, features = rows[:, 0].long(), rows[:, 1 : 1 + FEATURES].float()
        wanted = features @ _truth(features.device)
        off = features @ _on_grid(self.exact) - wanted
        # The gradient is that of the square, by the weights as they are: what is added is 0.
        exact = off.square() + 2 * off * (features @ _nothing(self.exact))
        plain = (self.plain(rows[:, 1:].float() / 500)[:, 0] - wanted / 16).square()
        return exact, plain, _nothing(self.entered).index_select(0, numbers)

    @torch.no_grad()
    def note(self) -> None:
        """An update is about to be made: what is in its gradient goes into the ledger."""
        assert self.entered.grad is not None
        self.journal[int(self.updates)] = self.entered.grad
        self.updates += 1


def _truth(device: torch.device) -> Tensor:
    return torch.arange(FEATURES, device=device).remainder(3).sub(1).float()


def _on_grid(weight: Tensor) -> Tensor:
    return (weight.detach() * _GRID).round() / _GRID


def _nothing(weight: Tensor) -> Tensor:
    """0, whose gradient is the weight's."""
    return weight - weight.detach()


def _hear_nothing(phase: str, updates: int, tier: str) -> None:
    """Where nobody wants to know."""


class Ledger(Task[LedgerConfig]):
    """The task; `told` hears the phase that is entered, the updates made by then, and the feed's tier."""

    name = "ledger"

    def __init__(self, config: LedgerConfig, told: Callable[[str, int, str], None] = _hear_nothing) -> None:
        super().__init__(config)
        self._told = told
        self._rows = torch.from_numpy(make_rows(config.salt, config.train.device))
        self._model: LedgerModel | None = None
        self._updates = 0
        self._tier = ""
        self._hooks = [
            register_optimizer_step_pre_hook(self._note),
            register_optimizer_step_post_hook(self._tell_update),
        ]

    def close(self) -> None:
        """Hear of no more updates."""
        for hook in self._hooks:
            hook.remove()

    def build_model(self) -> nn.Module:
        """On the CPU."""
        self._model = LedgerModel(self._rows.shape[1], self.config.dropout)
        return self._model

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        """As the config says; the validation always comes from the files."""
        config, source = self.config, NpySource(self.config.data)
        shared: dict[str, Any] = {
            "global_batch_size": BATCH, "device": device, "rank": world.rank, "world_size": world.size
        }  # fmt: skip
        train = Feed(
            source, shuffle=config.shuffle, seed=config.train.seed, block_size=8, group_size=4,
            tier=config.tier, cache=config.cache, workers=config.workers, reserve=_RESERVE, **shared,
        )  # fmt: skip
        valid = Feed(source, subset=np.arange(VALIDATED), tier="source", workers=0, **shared)
        return Feeds(train=train, valid=valid)

    def begin_epoch(self, epoch: int, feeds: Feeds) -> None:
        """The first batch is waited for."""
        assert self._model is not None
        self._updates, self._tier = int(self._model.updates), feeds.train.tier
        self._told("wait", self._updates, self._tier)

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """Of samples that are as they were made."""
        if model.training:
            self._told("step", self._updates, self._tier)
        self._check(batch)
        exact, plain, entered = model(batch)
        if not bool((exact.detach() < _MOST**2).all()):
            raise BenchFailed(f"an error of {_MOST:g} or more: its sums would be rounded")
        parts = {"exact": exact.mean(), "plain": plain.mean()}
        total = parts["exact"] + parts["plain"] + entered.mean()
        return Losses(total=total, samples=len(batch), parts=parts)

    def metrics(self) -> dict[str, Any]:
        """The loss is all there is to judge by."""
        return {}

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
        """Nothing beside the loss."""

    def _check(self, rows: Tensor) -> None:
        here = rows.cpu()
        wrong = (here != self._rows[here[:, 0].long().clamp(0, SAMPLES - 1)]).any(1)
        if bool(wrong.any()):
            raise BenchFailed(f"samples {here[wrong, 0].tolist()} are not as they were written")

    def _is_ours(self, optimizer: Optimizer) -> bool:
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        return self._model is not None and any(weight is self._model.entered for weight in weights)

    def _note(self, optimizer: Optimizer, *words: Any) -> None:
        if self._is_ours(optimizer):
            assert self._model is not None
            self._model.note()

    def _tell_update(self, optimizer: Optimizer, *words: Any) -> None:
        if self._is_ours(optimizer):
            self._updates += 1
            phase = "epoch" if self._updates % STEPS_PER_EPOCH == 0 else "wait"
            self._told(phase, self._updates, self._tier)
