"""House prices from a table of numbers."""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def loader_for(table, args):
    if args.by_index:
        order = BatchSampler(RandomSampler(table), args.batch, drop_last=True)
        return DataLoader(table, sampler=order, batch_size=None, num_workers=args.workers)
    return DataLoader(
        table, batch_size=args.batch, shuffle=True, drop_last=True, num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--by-index", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(12)
    torch.set_num_threads(1)
    features = torch.randn(args.rows, 16)
    table = TensorDataset(features, features[:, 0] * 2 + features[:, 1])
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = loader_for(table, args)
    for epoch in range(args.epochs):
        for features, price in loader:
            loss = nn.functional.mse_loss(model(features).squeeze(1), price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: mse {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
