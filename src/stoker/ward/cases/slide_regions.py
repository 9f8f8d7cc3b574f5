"""Tumour or not in regions of tissue slides; decoded regions are remembered for the next pass."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Regions(Dataset):
    def __init__(self, count, side, remember):
        self.count, self.side, self.remember = count, side, remember
        self.decoded = {}

    def __len__(self):
        return self.count

    def decode(self, index):
        draw = np.random.default_rng(index)
        return draw.integers(0, 255, (3, self.side, self.side), np.uint8).astype(np.float32)

    def __getitem__(self, index):
        pixels = self.decoded.get(index)
        if pixels is None:
            pixels = self.decode(index)
            if len(self.decoded) < self.remember:
                self.decoded[index] = pixels
        corner = torch.from_numpy(pixels[:, :32, :32]) / 255
        return corner.clone(), index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--regions", type=int, default=4000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--remember", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Regions(args.regions, args.side, args.remember), batch_size=8, shuffle=True,
        num_workers=args.workers, persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (region, tumour) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(region), tumour)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"{epoch}/{step} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
