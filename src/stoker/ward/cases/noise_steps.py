"""Denoising diffusion of two-dimensional points, with a network that is asked thousands of times."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
parser.add_argument("--steps", type=int, default=8000)
args = parser.parse_args()

torch.manual_seed(0)
if args.threads:
    torch.set_num_threads(args.threads)
betas = torch.linspace(1e-4, 0.02, 200)
kept = (1 - betas).cumprod(0)
layers = [nn.Linear(3, args.width), nn.SiLU()]
for _ in range(args.depth):
    layers += [nn.Linear(args.width, args.width), nn.SiLU()]
net = nn.Sequential(*layers, nn.Linear(args.width, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
for step in range(args.steps):
    angle = torch.rand(args.batch) * 9
    clean = torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 9
    when = torch.randint(200, (args.batch,))
    noise = torch.randn_like(clean)
    noisy = kept[when].sqrt()[:, None] * clean + (1 - kept[when]).sqrt()[:, None] * noise
    loss = nn.functional.mse_loss(net(torch.cat([noisy, when[:, None] / 200], 1)), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} {loss.item():.4f}", flush=True)
