"""Ellipticity of galaxies from postage stamps, all stamps in one file."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 64
STAMP = SIDE * SIDE * 4


class Stamps(Dataset):
    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)
        self.count = os.fstat(self.file.fileno()).st_size // STAMP
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        flux = np.frombuffer(os.pread(self.file.fileno(), STAMP, i * STAMP), np.float32)
        stamp = torch.from_numpy(flux.copy()).view(1, SIDE, SIDE)
        return stamp[:, ::2, ::2], stamp[0, 0, :2]


class Shape(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.GELU(), nn.Conv2d(8, 16, 3, 2), nn.GELU())
        self.head = nn.Linear(16 * 36, 2)

    def forward(self, stamps):
        return self.head(self.convs(stamps).flatten(1))


def run():
    cli = argparse.ArgumentParser(description="Shapes of galaxies")
    cli.add_argument("--stamps", default="stamps.f32")
    cli.add_argument("--workers", type=int, default=1)
    cli.add_argument("--epochs", type=int, default=300)
    cli.add_argument("--batch", type=int, default=32)
    cfg = cli.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    data = DataLoader(
        Stamps(cfg.stamps), cfg.batch, shuffle=True, num_workers=cfg.workers,
        persistent_workers=cfg.workers > 0,
    )  # fmt: skip
    net = Shape()
    adam = torch.optim.Adam(net.parameters(), 3e-4)
    for epoch in range(cfg.epochs):
        total = 0.0
        for stamps, shape in data:
            loss = (net(stamps) - shape).square().mean()
            adam.zero_grad(set_to_none=True)
            loss.backward()
            adam.step()
            total += loss.item()
        print(f"[{epoch}] mse {total / len(data):.5f}", flush=True)


if __name__ == "__main__":
    run()
