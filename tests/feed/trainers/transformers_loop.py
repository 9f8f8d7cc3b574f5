"""transformers' Trainer with the feed as training and evaluation loader; it resumes by skipping batches."""

from typing import Any

import torch
import transformers

from feed.trainers.told import (
    EPOCHS,
    GLOBAL_BATCH,
    SAVED_AT,
    STEPS,
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


class FeedTrainer(transformers.Trainer):  # type: ignore[misc]
    """Trains on a feed, and tells what it was handed."""

    told = "whole"

    def get_train_dataloader(self) -> Feed:
        return make_feed()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Feed:
        return make_feed(shuffle=False)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        tell(self.told, self.state.global_step // STEPS, inputs)
        return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[no-any-return]


def make_trainer(training: str) -> FeedTrainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(kept("transformers")),
        per_device_train_batch_size=GLOBAL_BATCH // WORLD,
        per_device_eval_batch_size=GLOBAL_BATCH // WORLD,
        num_train_epochs=EPOCHS,
        use_cpu=True,
        ddp_backend="gloo" if WORLD > 1 else None,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="steps" if training == "whole" else "no",
        save_steps=2,
        label_names=["labels"],
    )
    trainer = FeedTrainer(Net(), arguments)
    trainer.told = training
    return trainer


evaluated: list[int] = []


def remember(found: Any) -> dict[str, float]:
    evaluated.extend(found.label_ids.tolist())
    return {}


first = make_trainer("whole")
first.train()
first.compute_metrics = remember
first.evaluate()
tell_fact("evaluated", evaluated)
saved = checkpoint("transformers")
make_trainer("resumed").train(resume_from_checkpoint=str(saved / f"checkpoint-{SAVED_AT}"))
make_trainer("resumed at the epoch's end").train(resume_from_checkpoint=str(saved / f"checkpoint-{STEPS}"))
end()
