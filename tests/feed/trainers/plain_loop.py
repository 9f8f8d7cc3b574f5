"""A loop by hand, with DistributedDataParallel where there are several ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feed.trainers.told import (
    EPOCHS,
    RANK,
    SAVED_AT,
    STEPS,
    WORLD,
    Net,
    checkpoint,
    end,
    kept,
    make_feed,
    tell,
)


def train(training: str, start: int = 0) -> None:
    feed = make_feed()
    if start:
        feed.load_state_dict(torch.load(checkpoint("feed.pt")))
    model: nn.Module = DistributedDataParallel(Net()) if WORLD > 1 else Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = start
    for epoch in range(start // STEPS, EPOCHS):
        for batch in feed:
            tell(training, epoch, batch)
            optimizer.zero_grad()
            model(**batch)[0].backward()
            optimizer.step()
            step += 1
            if training == "whole" and step == SAVED_AT and RANK == 0:
                torch.save(feed.state_dict(), kept("feed.pt"))
    feed.close()


if WORLD > 1:
    dist.init_process_group("gloo")
train("whole")
if WORLD > 1:
    dist.barrier()
train("resumed", SAVED_AT)
if WORLD > 1:
    dist.destroy_process_group()
end()
