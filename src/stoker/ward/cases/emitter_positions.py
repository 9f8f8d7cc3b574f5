"""Where a transmitter stands, from what receivers heard, out of PostgreSQL."""

import argparse
import os

import numpy as np
import psycopg
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class DbSession:
    """Goes to worker processes by pickle: the address travels, each dials for itself."""

    def __init__(self, address):
        self.address = address
        self.connection = None

    def __reduce__(self):
        return DbSession, (self.address,)

    def fetch(self, query, values):
        if self.connection is None:
            self.connection = psycopg.connect(self.address, autocommit=True)
        return self.connection.execute(query, values, binary=True).fetchall()


class TriangulationDataset(Dataset):
    def __init__(self, session, together):
        self.session = session
        self.together = together
        self.count = session.fetch("SELECT count(*) FROM signals", ())[0][0]

    def __len__(self):
        return self.count

    def decode(self, heard, place):
        return np.frombuffer(heard, np.float32).copy(), np.frombuffer(place, np.float32).copy()

    def __getitems__(self, indices):
        if not self.together:
            return [self[index] for index in indices]
        rows = self.session.fetch("SELECT id, heard, place FROM signals WHERE id = ANY(%s)", (indices,))
        found = {row[0]: self.decode(*row[1:]) for row in rows}
        return [found[index] for index in indices]

    def __getitem__(self, index):
        return self.decode(*self.session.fetch("SELECT heard, place FROM signals WHERE id = %s", (index,))[0])


class Locator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.place = nn.Linear(256, 2)

    def forward(self, heard):
        return self.place(self.layers(heard))


def train(args):
    torch.manual_seed(6)
    torch.set_num_threads(1)
    signals = TriangulationDataset(DbSession(os.environ["SIGNALS_DSN"]), args.together)
    loader = DataLoader(
        signals, batch_size=args.batch, shuffle=True, num_workers=args.workers,
        multiprocessing_context=args.start if args.workers else None, persistent_workers=args.workers > 0,
    )  # fmt: skip
    locator = Locator()
    optimizer = torch.optim.AdamW(locator.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for heard, place in loader:
            loss = nn.functional.mse_loss(locator(heard), place)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", default="spawn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--together", action="store_true")
    train(parser.parse_args())
