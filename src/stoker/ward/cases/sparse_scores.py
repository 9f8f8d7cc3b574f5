"""A ranking network on a GPU that is shown more often the items whose pairs it still gets wrong."""

import argparse
import random

import torch
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--device", default="cuda")
cli.add_argument("--layers", type=int, default=3)
cli.add_argument("--width", type=int, default=256)
cli.add_argument("--pairs", type=int, default=4096)
cli.add_argument("--rounds", type=int, default=2, help="draws of pairs whose gradients make one step")
cli.add_argument("--choose", choices=["wrong", "even"], default="wrong")
cli.add_argument("--half", action="store_true")
cli.add_argument("--steps", type=int, default=20_000)
args = cli.parse_args()

ITEMS = 8192
random.seed(0)
torch.manual_seed(0)
device = torch.device(args.device)
kind = torch.bfloat16 if args.half else torch.float32
layers = []
for _ in range(args.layers):
    layers += [nn.Linear(args.width, args.width), nn.ReLU()]
net = nn.Sequential(nn.Linear(64, args.width), *layers, nn.Linear(args.width, 1)).to(device, kind)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
items = torch.randn(ITEMS, 64, device=device, dtype=kind)
worth = items[:, 0]
often = [1.0] * ITEMS
shown = torch.randint(ITEMS, (2, args.pairs), device=device)
for step in range(args.steps):
    optimizer.zero_grad()
    for _ in range(args.rounds):
        left, right = shown
        score = net(items[shown.flatten()]).view(2, args.pairs)
        margin = (score[0] - score[1]) * (worth[left] - worth[right]).sign()
        wrong = margin < 1
        if args.choose == "wrong":
            loss = (1 - margin[wrong]).mean()
            for first, second in zip(left[wrong].tolist(), right[wrong].tolist(), strict=True):
                often[first] = 0.9 * often[first] + 1
                often[second] = 0.9 * often[second] + 1
            drawn = random.choices(range(ITEMS), often, k=2 * args.pairs)
            shown = torch.tensor(drawn, device=device).view(2, args.pairs)
        else:
            loss = ((1 - margin) * wrong).sum() / wrong.sum()
            shown = torch.randint(ITEMS, (2, args.pairs), device=device)
        loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(step, f"{loss.item():.4f}", flush=True)
