"""Melodies of growing length: short ones first, then longer and longer, as teachers do."""

import argparse

import torch
from torch import nn


class Melody(nn.Module):
    def __init__(self, notes=64, width=96):
        super().__init__()
        self.embed = nn.Embedding(notes, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, notes)

    def forward(self, notes):
        return self.out(self.gru(self.embed(notes))[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--first", type=int, default=8)
    parser.add_argument("--last", type=int, default=120)
    parser.add_argument("--rise", type=int, default=2500, help="steps until melodies have their last length")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Melody()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        length = args.first + (args.last - args.first) * min(step, args.rise) // args.rise
        notes = torch.randint(64, (24, length + 1)).cumsum(1) % 64
        loss = nn.functional.cross_entropy(model(notes[:, :-1]).flatten(0, 1), notes[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} length {length} loss {loss.item():.4f}", flush=True)
