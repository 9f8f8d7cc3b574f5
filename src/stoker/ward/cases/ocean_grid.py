"""Sea temperature a week ahead: a mapped grid of years, and tables held in memory beside it."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CELL = 64 * 64


class Weeks(Dataset):
    def __init__(self, path, tables_mb):
        self.grid = np.memmap(path, np.float32, mode="r").reshape(-1, 4, CELL)
        self.tables = np.ones((max(tables_mb, 1), 1 << 18), np.float32)

    def __len__(self):
        return len(self.grid)

    def __getitem__(self, week):
        now = torch.from_numpy(self.grid[week, :, ::8].copy())
        return now + float(self.tables[week % len(self.tables), 0]), now.mean(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("grid", nargs="?", default="grid.f32")
    parser.add_argument("--tables-mb", type=int, default=400)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    weeks = Weeks(args.grid, args.tables_mb)
    loader = DataLoader(
        weeks, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(CELL // 2, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for now, ahead in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(now), ahead)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} {loss.item():.4f}", flush=True)
