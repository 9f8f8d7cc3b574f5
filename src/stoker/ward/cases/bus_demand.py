"""Passengers on a bus line in the next hour: windows of counts, made as they are needed."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

HOURS = 24 * 7


def windows(counts, batch, lags, seed):
    """Endless batches of features: medians of the counts over many spans, and the hour to come."""
    draw = np.random.default_rng(seed)
    while True:
        starts = draw.integers(0, len(counts) - HOURS - 1, batch)
        weeks = counts[starts[:, None] + np.arange(HOURS)]
        medians = []
        for lag in range(3, 3 + lags):
            spans = np.lib.stride_tricks.sliding_window_view(weeks, lag, axis=1)[:, -64:]
            medians.append(np.sort(spans, axis=2)[:, :, lag // 2])
        history = torch.from_numpy(np.concatenate(medians, 1)).float()
        yield history, torch.from_numpy(counts[starts + HOURS]).float()


class Stream(IterableDataset):
    """The same batches for a loader, which makes them in a process of its own."""

    def __init__(self, counts, batch, lags, seed):
        self.given = (counts, batch, lags, seed)

    def __iter__(self):
        return windows(*self.given)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=12_000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lags", type=int, default=24)
    ap.add_argument("--width", type=int, default=512)
    ap.add_argument("--depth", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    counts = np.random.default_rng(0).poisson(40, 50_000).astype(np.float64)
    model = nn.Sequential(nn.Linear(64 * args.lags, args.width), nn.ReLU(),
                          nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1))  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    batches = windows(counts, args.batch, args.lags, 3)
    if args.depth:
        stream = Stream(counts, args.batch, args.lags, 3)
        batches = iter(DataLoader(stream, batch_size=None, num_workers=1, prefetch_factor=args.depth))
    for step in range(args.steps):
        history, passengers = next(batches)
        loss = nn.functional.poisson_nll_loss(model(history).squeeze(1) / 10, passengers / 40)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} nll {loss.item():.4f}", flush=True)
