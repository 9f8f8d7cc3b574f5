"""Lightning's Trainer, with the feed as training and validation loader, made in a hook and outside."""

from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

from feed.trainers.told import (
    EPOCHS,
    RANK,
    SAVED_AT,
    WORLD,
    Net,
    checkpoint,
    end,
    kept,
    make_feed,
    tell,
    tell_fact,
)
from stoker import Feed


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Tells what it was handed."""

    def __init__(self, training: str) -> None:
        super().__init__()
        self.net = Net()
        self.told = training

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        tell(self.told, self.current_epoch, batch)
        return self.net(**batch)[0]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            tell(f"{self.told} validation", self.current_epoch, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class ModelWithFeed(Model):
    """Makes its loaders in the hooks for that."""

    def train_dataloader(self) -> Feed:
        return make_feed()

    def val_dataloader(self) -> Feed:
        return make_feed(shuffle=False)


class Saver(lightning.Callback):  # type: ignore[misc]
    """Keeps a checkpoint in the middle of the second epoch."""

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == SAVED_AT:
            trainer.save_checkpoint(kept("lightning.ckpt"), weights_only=False)


def make_trainer(**settings: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    strategy = DDPStrategy(process_group_backend="gloo")
    return lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        strategy=strategy,
        devices=WORLD,
        num_nodes=1,
        logger=False,
        **quiet,
        **settings,
    )


feed, validation = make_feed(), make_feed(shuffle=False)
trainer = make_trainer(callbacks=[Saver()])
trainer.fit(Model("whole"), feed, validation)
tell_fact("trains on the feed", trainer.train_dataloader is feed and trainer.val_dataloaders is validation)
if RANK == 0:
    saved = torch.load(kept("lightning.ckpt"), weights_only=True)
    tell_fact("states kept", len(saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]))
make_trainer().fit(ModelWithFeed("resumed"), ckpt_path=checkpoint("lightning.ckpt"), weights_only=True)
end()
