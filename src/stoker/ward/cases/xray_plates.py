"""Fractures on X-ray plates with a small residual network."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Plates(Dataset):
    def __init__(self, count, kind):
        draw = np.random.default_rng(3)
        self.plates = draw.random((count, 1, 32, 32)).astype(kind)
        self.broken = draw.integers(0, 2, count)

    def __len__(self):
        return len(self.plates)

    def __getitem__(self, index):
        return self.plates[index], self.broken[index]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.conv2(torch.relu(self.conv1(x))))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--kind", default="float64")
    cli.add_argument("--width", type=int, default=24)
    cli.add_argument("--batch", type=int, default=8)
    cli.add_argument("--workers", type=int, default=1)
    cli.add_argument("--epochs", type=int, default=60)
    o = cli.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if o.kind == "float64" else torch.float32)
    model = nn.Sequential(nn.Conv2d(1, o.width, 3, 2, 1), Residual(o.width), Residual(o.width),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(o.width, 2))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(
        Plates(1600, o.kind), o.batch, shuffle=True, num_workers=o.workers, persistent_workers=o.workers > 0
    )
    for epoch in range(o.epochs):
        for plate, fracture in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(plate), fracture)
            loss.backward()
            optimizer.step()
        print(f"{epoch}: {loss.item():.4f}", flush=True)
