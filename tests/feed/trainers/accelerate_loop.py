"""A loop with Accelerate: prepare, accumulate, gather for metrics, checkpoints, skipping."""

import torch
from accelerate import Accelerator

from feed.trainers.told import EPOCHS, SAVED_AT, STEPS, Net, checkpoint, end, kept, make_feed, tell, tell_fact

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)


def train(training: str, start: int = 0, *, skipping: bool = False) -> None:
    accelerator.free_memory()
    net, given = Net(), make_feed()
    model, optimizer, feed = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), given)
    tell_fact("the feed is left alone", feed is given)
    if start:
        accelerator.load_state(str(checkpoint("accelerate")))
    step = start
    for epoch in range(start // STEPS, EPOCHS):
        gathered, updates = [], []
        skips = skipping and epoch == start // STEPS
        loader = accelerator.skip_first_batches(feed, start % STEPS) if skips else feed
        for batch in loader:
            tell(training, epoch, batch)
            with accelerator.accumulate(model):
                loss, labels = model(**batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            gathered += accelerator.gather_for_metrics(labels).tolist()
            updates.append(accelerator.sync_gradients)
            step += 1
            if training == "whole" and step == SAVED_AT:
                accelerator.save_state(str(kept("accelerate")))
        if training == "whole":
            tell_fact("gathered", gathered)
            tell_fact("updates", updates)


train("whole")
accelerator.wait_for_everyone()
train("resumed", SAVED_AT)
train("resumed by skipping", SAVED_AT, skipping=True)
accelerator.end_training()
end()
