"""Which parts are bought together, from a catalogue in an SQL database."""

import argparse
import sqlite3
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Session:
    """A connection, with the trip to the site where the database stands."""

    def __init__(self, path, trip):
        self.path, self.trip = path, trip
        self.link = None

    def ask(self, statement, values=()):
        if self.link is None:
            self.link = sqlite3.connect(self.path)
        if self.trip:
            time.sleep(self.trip)
        return self.link.execute(statement, values).fetchall()


class Parts(Dataset):
    def __init__(self, session):
        self.session = session
        ((self.total,),) = session.ask("SELECT count(*) FROM parts")
        session.link = None

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        return self.shape(self.session.ask("SELECT features, sold FROM parts WHERE id = ?", (index,))[0])

    def shape(self, row):
        return np.frombuffer(row[0], np.float32).copy(), np.float32(row[1])


class ManyParts(Parts):
    def __getitems__(self, indices):
        marks = ",".join("?" * len(indices))
        rows = self.session.ask(f"SELECT id, features, sold FROM parts WHERE id IN ({marks})", indices)
        found = {row[0]: row[1:] for row in rows}
        return [self.shape(found[index]) for index in indices]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", default="parts.db")
    parser.add_argument("--trip", type=float, default=0.001)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--many", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(17)
    torch.set_num_threads(1)
    parts = (ManyParts if args.many else Parts)(Session(args.database, args.trip))
    loader = DataLoader(
        parts, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for features, sold in loader:
            loss = nn.functional.mse_loss(model(features).squeeze(1), sold)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} mse {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
