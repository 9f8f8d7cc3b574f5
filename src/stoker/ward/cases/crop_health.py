"""Health of crops from drone pictures, on whatever cores there are."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Fields(Dataset):
    def __init__(self, count, effort):
        self.count, self.effort = count, effort

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        picture = draw.random((3, 48, 48), np.float32)
        for _ in range(self.effort):
            picture = np.sqrt(picture * picture[:, ::-1] + 0.01)
        return torch.from_numpy(np.ascontiguousarray(picture)), index % 3


class Settle:
    def __init__(self, cores):
        self.cores = cores

    def __call__(self, worker):
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--effort", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--bind", action="store_true")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    if args.bind:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    loader = DataLoader(
        Fields(args.pictures, args.effort),
        batch_size=args.batch,
        num_workers=args.workers,
        worker_init_fn=Settle(args.cores),
        persistent_workers=args.workers > 0,
    )
    width = args.width
    model = nn.Sequential(
        nn.Conv2d(3, width, 5, 2), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (picture, health) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(picture), health)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
