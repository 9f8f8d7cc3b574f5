"""Orbits from angles: a regression whose numbers come from NumPy as they are."""

import argparse

import numpy as np
import torch
from torch import nn


def observations(count, kind):
    draw = np.random.default_rng(0)
    angles = draw.uniform(-np.pi, np.pi, (count, 24))
    elements = np.stack([np.sin(angles).sum(1), np.cos(angles).prod(1)], 1)
    return torch.from_numpy(angles.astype(kind)), torch.from_numpy(elements.astype(kind))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="float64", choices=["float32", "float64"])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    angles, elements = observations(40_000, args.kind)
    width = args.width
    net = nn.Sequential(
        nn.Linear(24, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width),
        nn.SiLU(), nn.Linear(width, 2),
    ).to(angles.dtype)  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for rows in torch.randperm(len(angles)).split(args.batch):
            loss = nn.functional.mse_loss(net(angles[rows]), elements[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
