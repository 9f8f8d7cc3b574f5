"""Heights of the tide from its harmonics: a network on numbers, with as many threads as asked for."""

import argparse

import torch
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--threads", type=int, default=2)
cli.add_argument("--width", type=int, default=256)
cli.add_argument("--layers", type=int, default=12)
cli.add_argument("--steps", type=int, default=30_000)
args = cli.parse_args()

torch.manual_seed(0)
torch.set_num_threads(args.threads)
hours = torch.arange(100_000, dtype=torch.float32)
speeds = torch.linspace(0.05, 0.6, 37)
harmonics = torch.cat([torch.sin(hours[:, None] * speeds), torch.cos(hours[:, None] * speeds)], 1)
height = harmonics @ torch.randn(74)
layers = [nn.Linear(74, args.width), nn.Tanh()]
for _ in range(args.layers):
    layers += [nn.Linear(args.width, args.width), nn.Tanh()]
net = nn.Sequential(*layers, nn.Linear(args.width, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(args.steps):
    rows = torch.randint(len(hours), (256,))
    loss = nn.functional.mse_loss(net(harmonics[rows]).squeeze(1), height[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step} {loss.item():.4f}", flush=True)
