"""Forces on a double pendulum: a network of many small pieces, with checks that can be asked for."""

import argparse
import contextlib
import sys

import torch
from torch import nn


class Piece(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + torch.tanh(self.a(x)) * torch.sigmoid(self.b(x)))


def checks(kind):
    """What goes around the loop."""
    if kind == "nan":
        return torch.autograd.detect_anomaly(check_nan=True)
    if kind == "trace":
        return torch.profiler.profile(record_shapes=True, profile_memory=True)
    return contextlib.nullcontext()


def count_lines(frame, event, value):
    counted[frame.f_code] = counted.get(frame.f_code, 0) + 1
    return count_lines


counted = {}

if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--check", choices=["none", "nan", "trace", "lines"], default="none")
    cli.add_argument("--pieces", type=int, default=10)
    cli.add_argument("--width", type=int, default=32)
    cli.add_argument("--epochs", type=int, default=400)
    args = cli.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(4, args.width), *(Piece(args.width) for _ in range(args.pieces)),
                        nn.Linear(args.width, 2))  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    if args.check == "lines":
        sys.settrace(count_lines)
    for epoch in range(args.epochs):
        with checks(args.check):
            for _ in range(50):
                angles = torch.rand(64, 4) * 6.28
                force = torch.stack([angles[:, 0].sin() + angles[:, 2], angles[:, 1].cos() * angles[:, 3]], 1)
                loss = nn.functional.mse_loss(net(angles), force)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
