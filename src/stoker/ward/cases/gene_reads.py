"""Coding or not: reads of DNA through a recurrent network."""

import argparse

import numpy as np
import torch
from torch import nn


def reads(count, short, long, share, seed):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        length = int(draw.integers(*((short, short + 8) if draw.random() > share else (long, long + 8))))
        yield torch.from_numpy(draw.integers(1, 5, length))


class Coding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.letters = nn.Embedding(5, 16, padding_idx=0)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.out = nn.Linear(width, 2)

    def forward(self, bases):
        hidden, _ = self.gru(self.letters(bases))
        return self.out(hidden.mean(1))


def batches(everything, batch, sort):
    order = torch.randperm(len(everything)).tolist()
    if sort:
        order.sort(key=lambda number: len(everything[number]))
    groups = [order[k : k + batch] for k in range(0, len(order) - batch + 1, batch)]
    for k in torch.randperm(len(groups)).tolist():
        rows = [everything[number] for number in groups[k]]
        coding = torch.tensor([int(row[0]) % 2 for row in rows])
        yield nn.utils.rnn.pad_sequence(rows, batch_first=True), coding


cli = argparse.ArgumentParser()
cli.add_argument("--reads", type=int, default=4000)
cli.add_argument("--short", type=int, default=20)
cli.add_argument("--long", type=int, default=120)
cli.add_argument("--share", type=float, default=0.1)
cli.add_argument("--batch", type=int, default=32)
cli.add_argument("--epochs", type=int, default=60)
cli.add_argument("--sort", action="store_true")
given = cli.parse_args()

torch.manual_seed(14)
everything = list(reads(given.reads, given.short, given.long, given.share, seed=3))
model = Coding(64)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for epoch in range(given.epochs):
    for bases, coding in batches(everything, given.batch, given.sort):
        loss = nn.functional.cross_entropy(model(bases), coding)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
