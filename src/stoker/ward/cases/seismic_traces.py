"""Earthquake or blast: traces, filtered by torch where they are loaded."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Traces(Dataset):
    def __init__(self, count, length):
        self.count, self.length = count, length
        self.filters = torch.randn(16, 1, 65, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        trace = torch.randn(3, 1, self.length, generator=made)
        bands = nn.functional.conv1d(trace, self.filters, stride=2).abs().mean(2)
        return bands.flatten(), index % 2


class Threads:
    def __init__(self, count):
        self.count = count

    def __call__(self, worker):
        torch.set_num_threads(self.count)


def main(args):
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    loader = DataLoader(
        Traces(args.traces, args.length), 8, shuffle=True, num_workers=args.workers,
        worker_init_fn=Threads(args.threads), persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for bands, kind in loader:
            loss = nn.functional.cross_entropy(model(bands), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=int, default=1600)
    parser.add_argument("--length", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    main(parser.parse_args())
