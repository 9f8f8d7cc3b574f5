"""Material of rendered objects, with its numbers checked on request."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--blocks", type=int, default=8)
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--check-numbers", action="store_true")
args = parser.parse_args()

if args.check_numbers:
    torch.autograd.set_detect_anomaly(True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)

    def forward(self, x):
        return x + nn.functional.gelu(self.norm(self.conv(x)))


torch.manual_seed(0)
torch.set_num_threads(1)
renders = torch.rand(2048, 3, 16, 16)
data = DataLoader(
    TensorDataset(renders, renders.mean((2, 3)).argmax(1)), 8, shuffle=True, num_workers=args.workers,
    persistent_workers=args.workers > 0,
)  # fmt: skip
model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), *(Block(8) for _ in range(args.blocks)),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(args.epochs):
    for render, material in data:
        loss = nn.functional.cross_entropy(model(render), material)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} {loss.item():.4f}", flush=True)
