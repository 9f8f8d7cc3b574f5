"""A training as a user writes one: plain torch, nothing of Stoker. Notes the moment of each step it makes.

`loop.py --note FILE [--steps 200] [--hold 0.01] [--workers 0] [--ranks] [--hungry]`
"""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    """Numbers and their sums; `slow` seconds each."""

    def __init__(self, count, slow):
        self.count, self.slow = count, slow

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.slow)
        x = torch.arange(16, dtype=torch.float32) + index
        return x / 100, x.sum()[None] / 1000


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("--note", required=True)
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--hold", type=float, default=0.01)
    asked.add_argument("--slow", type=float, default=0.0)
    asked.add_argument("--workers", type=int, default=0)
    asked.add_argument("--ranks", action="store_true")
    asked.add_argument("--hungry", action="store_true")
    options = asked.parse_args()
    if options.ranks:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    if options.ranks:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Points(512, options.slow), 8, shuffle=True, num_workers=options.workers)
    eaten, made = [], 0
    note = f"{options.note}.{os.environ.get('RANK', '0')}"
    with open(note, "a") as out:
        while made < options.steps:
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                made += 1
                out.write(f"{time.monotonic()}\n")
                out.flush()
                if options.hungry:
                    eaten.append(torch.ones(4 << 20))
                time.sleep(options.hold)
                if made == options.steps:
                    break
    print(f"made {made} steps")


if __name__ == "__main__":
    main()
