"""Period of a painting from its scan, with a long register of everything the museum owns."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, owned, shown):
        self.register = [f"/museum/wing_{k % 9}/room_{k % 131}/object_{k:07d}.tif" for k in range(owned)]
        self.shown = shown

    def __len__(self):
        return self.shown

    def __getitem__(self, number):
        place = self.register[number * (len(self.register) // self.shown)]
        made = torch.Generator().manual_seed(number)
        return torch.rand(3, 32, 32, generator=made), int(place.split("_")[1][0]) % 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--owned", type=int, default=200_000)
    parser.add_argument("--shown", type=int, default=1600)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--start", default="spawn", choices=["spawn", "fork", "forkserver"])
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--epochs", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    loader = DataLoader(
        Scans(args.owned, args.shown),
        batch_size=32,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start,
        persistent_workers=args.stay,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 8),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for scan, period in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(scan), period)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
