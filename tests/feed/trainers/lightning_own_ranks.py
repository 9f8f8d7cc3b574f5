"""Ranks that Lightning starts by itself: `ddp` runs the script again, `ddp_spawn` pickles the feed."""

import atexit
import sys
from typing import Any

import lightning.pytorch as lightning
import torch
import torch.distributed as dist

from feed.trainers.told import EPOCHS, Net, end, make_feed, tell
from stoker import Feed


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Tells what it was handed."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        tell("whole", self.current_epoch, batch, dist.get_rank())
        return self.net(**batch)[0]

    def on_train_end(self) -> None:
        atexit.register(end)  # also in ranks that end elsewhere

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(feed: Feed, strategy: str) -> None:
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), feed)


if __name__ == "__main__":
    fit(make_feed(), sys.argv[2])
    end()
