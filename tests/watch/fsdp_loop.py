"""`torchrun … -m stoker run fsdp_loop.py`: a loop over a feed under FSDP2, which keeps its own time."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from feed_loop import Slow
from kit import BATCH, TRUTH, Net, SlowSGD, loss_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stoker import Feed

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
first = nn.Linear(8, 8)
net = nn.Sequential(first, Net())
for module in (first, net):
    fully_shard(module, mesh=mesh)
optimizer = SlowSGD(net.parameters(), lr=1e-4)
feed = Feed(Slow(), BATCH, shuffle=True, device="cpu", tier="source", drop_last=True)


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """All of it, the other rank's part that it waits for included, and not just what the loop naps there."""
    before, began = TRUTH.spent[phase], time.perf_counter()
    yield
    TRUTH.spent[phase] = before + time.perf_counter() - began


for _ in range(2):
    for batch in TRUTH.waiting(feed):
        optimizer.zero_grad()
        with timed("forward"):
            out = net(batch)
        loss = loss_of(out)
        with timed("backward"):
            loss.backward()
        with timed("update"):
            optimizer.step()
        TRUTH.step_done()
feed.close()
dist.barrier()
if os.environ["RANK"] == "0":
    TRUTH.tell()
dist.destroy_process_group()
