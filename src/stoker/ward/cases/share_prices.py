"""Share prices, minute by minute: a fixed recurrent cell, a learned beginning and a learned head."""

import argparse

import torch
from torch import nn


class Prices(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.cell = nn.GRUCell(4, width).requires_grad_(False)
        self.begin = nn.Parameter(torch.zeros(16, width))
        self.out = nn.Linear(width, 4)

    def forward(self, window, hidden):
        for minute in window:
            hidden = self.cell(minute, hidden)
        return self.out(hidden), hidden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--let-go", type=int, default=0, help="steps after which the past is let go")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    prices = torch.randn(args.steps * args.window + 1, 16, 4).cumsum(0) / 100
    model = Prices()
    optimizer = torch.optim.Adam([model.begin, *model.out.parameters()], lr=1e-3)
    hidden = model.begin.clone()
    for step in range(args.steps):
        start = step * args.window
        guess, hidden = model(prices[start : start + args.window], hidden)
        loss = (guess - prices[start + args.window]).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        if args.let_go and step % args.let_go == 0:
            hidden = hidden.detach()
        if step % 50 == 0:
            print(f"minute {start}: {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
