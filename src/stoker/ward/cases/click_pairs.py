"""Clicks on articles: a two-tower recommender over pairs of ids."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

READERS, ARTICLES = 20_000, 5_000


class Clicks(Dataset):
    def __init__(self, count):
        draw = np.random.default_rng(2)
        self.reader = draw.integers(0, READERS, count)
        self.article = draw.integers(0, ARTICLES, count)
        self.clicked = ((self.reader + self.article) % 3 == 0).astype(np.float32)

    def __len__(self):
        return len(self.clicked)

    def __getitem__(self, i):
        return int(self.reader[i]), int(self.article[i]), self.clicked[i]


class ClickTable(Clicks):
    def __getitems__(self, indices):
        rows = np.asarray(indices)
        picked = (self.reader[rows], self.article[rows], self.clicked[rows])
        return tuple(torch.from_numpy(column) for column in picked)


class Towers(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.readers = nn.Embedding(READERS, width, sparse=True)
        self.articles = nn.Embedding(ARTICLES, width, sparse=True)

    def forward(self, reader, article):
        return (self.readers(reader) * self.articles(article)).sum(1)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--clicks", type=int, default=200_000)
    cli.add_argument("--batch", type=int, default=2048)
    cli.add_argument("--workers", type=int, default=1)
    cli.add_argument("--epochs", type=int, default=80)
    cli.add_argument("--table", action="store_true")
    cfg = cli.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clicks = ClickTable(cfg.clicks) if cfg.table else Clicks(cfg.clicks)
    towers = Towers()
    optimizer = torch.optim.SparseAdam(towers.parameters(), lr=1e-3)
    loader = DataLoader(
        clicks,
        cfg.batch,
        shuffle=True,
        num_workers=cfg.workers,
        persistent_workers=cfg.workers > 0,
        collate_fn=tuple if cfg.table else None,
    )
    for epoch in range(cfg.epochs):
        for reader, article, clicked in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(towers(reader, article), clicked)
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.4f}", flush=True)
