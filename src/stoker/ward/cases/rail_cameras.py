"""Cracks in rails: pictures through a loader with workers, to a GPU."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--side", type=int, default=224)
parser.add_argument("--workers", type=int, default=6)
parser.add_argument("--pin", action="store_true")
parser.add_argument("--epochs", type=int, default=60)

if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(0)
    pictures = torch.randint(0, 255, (1024, 3, args.side, args.side), dtype=torch.uint8).float()
    rails = TensorDataset(pictures, torch.arange(1024) % 2)
    loader = DataLoader(
        rails, args.batch, shuffle=True, num_workers=args.workers, pin_memory=args.pin,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = nn.Sequential(nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2))  # fmt: skip
    model = model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(args.epochs):
        for picture, crack in loader:
            picture = picture.to(args.device, non_blocking=args.pin)
            crack = crack.to(args.device, non_blocking=args.pin)
            loss = nn.functional.cross_entropy(model(picture / 255), crack)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.4f}", flush=True)
