"""A ranking network on a GPU that learns from the pairs it still gets wrong."""

import argparse

import torch
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--device", default="cuda")
cli.add_argument("--layers", type=int, default=40)
cli.add_argument("--width", type=int, default=256)
cli.add_argument("--bands", type=int, default=16)
cli.add_argument("--choose", choices=["mask", "weight"], default="mask")
cli.add_argument("--steps", type=int, default=20_000)
args = cli.parse_args()

torch.manual_seed(0)
device = torch.device(args.device)
layers = []
for _ in range(args.layers):
    layers += [nn.Linear(args.width, args.width), nn.ReLU()]
net = nn.Sequential(nn.Linear(64, args.width), *layers, nn.Linear(args.width, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
items = torch.randn(8192, 64, device=device)
worth = items[:, 0]
for step in range(args.steps):
    left, right = torch.randint(8192, (2, 128), device=device)
    margin = (net(items[left]) - net(items[right])).squeeze(1) * (worth[left] - worth[right]).sign()
    wrong = margin < 1
    if args.choose == "mask":
        for band in range(1, args.bands):
            nearest = margin[margin.abs() < band / args.bands]
        loss = (1 - margin[wrong]).mean()
    else:
        loss = ((1 - margin) * wrong).sum() / wrong.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(step, f"{loss.item():.4f}", flush=True)
