"""Fares from windows of rides, out of a Parquet table."""

import argparse

import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = [f"f{k}" for k in range(12)]


class Windows(Dataset):
    def __init__(self, path, rows):
        self.path, self.rows = path, rows
        self.table = pq.ParquetFile(path)
        self.group = self.table.metadata.row_group(0).num_rows
        self.total = self.table.metadata.num_rows // rows

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        first = index * self.rows
        part = self.table.read_row_group(first // self.group, columns=[*COLUMNS, "fare"], use_threads=False)
        part = part.slice(first % self.group, self.rows)
        features = torch.stack([torch.from_numpy(part[name].to_numpy()) for name in COLUMNS], 1)
        return features, torch.from_numpy(part["fare"].to_numpy())


parser = argparse.ArgumentParser()
parser.add_argument("--table", default="rides.parquet")
parser.add_argument("--rows", type=int, default=32)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--epochs", type=int, default=80)
args = parser.parse_args()

torch.manual_seed(21)
torch.set_num_threads(1)
windows = Windows(args.table, args.rows)
loader = DataLoader(
    windows, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
)
model = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(args.epochs):
    for features, fare in loader:
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(features).squeeze(-1), fare)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
