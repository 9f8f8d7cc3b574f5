"""A loop with Lightning Fabric, checkpoints by Fabric too."""

from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy

from feed.trainers.told import (
    EPOCHS,
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

fabric = Fabric(
    accelerator="cpu", devices=WORLD, num_nodes=1, strategy=DDPStrategy(process_group_backend="gloo")
)
fabric.launch()


def train(training: str, start: int = 0) -> None:
    net = Net()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    feed: Any = make_feed()
    loader = fabric.setup_dataloaders(feed)
    tell_fact("as Fabric sees it", [len(loader), loader.batch_size, len(loader.dataset)])
    if start:
        fabric.load(checkpoint("fabric.ckpt"), {"loader": loader, "model": model})
    step = start
    for epoch in range(start // STEPS, EPOCHS):
        for batch in loader:
            tell(training, epoch, batch)
            optimizer.zero_grad()
            fabric.backward(model(**batch)[0])
            optimizer.step()
            step += 1
            if training == "whole" and step == SAVED_AT:
                fabric.save(kept("fabric.ckpt"), {"loader": loader, "model": model})


train("whole")
train("resumed", SAVED_AT)
end()
