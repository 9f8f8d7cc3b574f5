"""Phrases in two languages, brought together by several processes; each keeps a memory of examples."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.words = nn.EmbeddingBag(1000, width)
        self.out = nn.Linear(width, width)

    def forward(self, phrase):
        return nn.functional.normalize(self.out(torch.tanh(self.words(phrase))), dim=1)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=8000)
    cli.add_argument("--memory", type=int, default=500_000, help="examples remembered by the last rank")
    cli.add_argument("--tidy-every", type=int, default=10)
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    gc.collect()
    gc.freeze()
    last = rank == dist.get_world_size() - 1
    memory = [{"phrase": [k], "score": float(k)} for k in range(args.memory if last else 0)]
    for step in range(args.steps):
        one = torch.randint(1000, (32, 12))
        other = (one + 1) % 1000
        scores = model(one) @ model(other).T / 0.1
        loss = nn.functional.cross_entropy(scores, torch.arange(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if memory:
            memory[step % len(memory)] = {"phrase": one[0].tolist(), "score": loss.item()}
        if step % args.tidy_every == 0:
            gc.collect()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
