"""Drag of a wing section, with readings from the tunnel's data server."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tunnel(Dataset):
    """Readings by number. The rig answers one at a time for each who asks, after `rest` seconds."""

    def __init__(self, readings, rest):
        self.readings, self.rest = readings, rest

    def __len__(self):
        return self.readings

    def __getitem__(self, number):
        time.sleep(self.rest)
        made = torch.Generator().manual_seed(number)
        section = torch.randn(2, 64, generator=made)
        return section, section.square().mean().view(1)


class Drag(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, section):
        return self.layers(section)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rest", type=float, default=0.005)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--readings", type=int, default=6400)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Tunnel(args.readings, args.rest), args.batch, num_workers=args.workers, shuffle=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    drag = Drag(args.width)
    optimizer = torch.optim.Adam(drag.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for number, (section, measured) in enumerate(loader):
            loss = (drag(section) - measured).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % 50 == 0:
                print(epoch, number, f"{loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
