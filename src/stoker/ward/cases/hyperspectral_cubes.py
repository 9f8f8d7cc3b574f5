"""Minerals in hyperspectral cubes: large batches to a GPU, and a shallow network."""

import argparse

import torch
from torch import nn


class Held:
    """Cubes in main memory, handed out in turn."""

    def __init__(self, batches, batch, bands, pinned, per_tensor):
        self.cubes = [torch.rand(batch, bands, 32, 32) for _ in range(batches)]
        if pinned:
            self.cubes = [cube.pin_memory() for cube in self.cubes]
        self.again = per_tensor

    def __iter__(self):
        while True:
            for cube in self.cubes:
                yield cube.clone().pin_memory() if self.again else cube


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", default="cuda")
    cli.add_argument("--batch", type=int, default=128)
    cli.add_argument("--bands", type=int, default=96)
    cli.add_argument("--pinned", action="store_true")
    cli.add_argument("--pin-each", action="store_true")
    cli.add_argument("--steps", type=int, default=10_000)
    args = cli.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(args.bands, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 12),
    ).to(args.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    held = Held(6, args.batch, args.bands, args.pinned, args.pin_each)
    for step, cube in enumerate(held, 1):
        on_card = cube.to(args.device, non_blocking=args.pinned)
        loss = model(on_card).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(step, f"{loss.item():.4f}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
