"""Will a user come back: features from the company's feature service over HTTP."""

import argparse
import http.client
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Users(Dataset):
    def __init__(self, address, count, in_bulk):
        self.address, self.count, self.in_bulk = address, count, in_bulk
        self.client = None

    def __len__(self):
        return self.count

    def ask(self, ids):
        if self.client is None:
            self.client = http.client.HTTPConnection(self.address)
        self.client.request("GET", "/users/" + ",".join(map(str, ids)))
        body = self.client.getresponse().read()
        return np.frombuffer(body, np.float32).reshape(len(ids), 33).copy()

    def __getitem__(self, user):
        row = self.ask([user])[0]
        return row[:32], row[32]

    def __getitems__(self, users):
        if self.in_bulk:
            return [(row[:32], row[32]) for row in self.ask(users)]
        return [self[user] for user in users]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=6000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--in-bulk", action="store_true")
    opts = parser.parse_args()
    torch.manual_seed(23)
    torch.set_num_threads(1)
    users = Users(os.environ["FEATURES_ADDRESS"], opts.users, opts.in_bulk)
    model = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(
        users, opts.batch, shuffle=True, num_workers=opts.workers, drop_last=True,
        persistent_workers=opts.workers > 0,
    )  # fmt: skip
    step = 0
    for _ in range(opts.epochs):
        for features, back in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(features).squeeze(1), back)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)
