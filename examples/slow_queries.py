"""A slow training script, as people write them: a query to the database for every sample.

The database is made once, in a temporary folder: 20,000 signals of 7 receivers. Each query takes 1 ms longer
than SQLite itself, as one to a server in the same building does. Run it under `stoker doctor
examples/slow_queries.py`; then with `--by-batch`, which asks once for a whole batch.
"""

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIGNALS, RECEIVERS, FEATURES = 20_000, 7, 16
TRIP_SECONDS = 0.001


def make_data(path: Path) -> None:
    """Features of each receiver, and where the emitter stood."""
    generator = np.random.default_rng(0)
    with sqlite3.connect(path) as link:
        link.execute("CREATE TABLE signals (id INTEGER PRIMARY KEY, features BLOB, x REAL, y REAL)")
        for number in range(SIGNALS):
            features = generator.standard_normal((RECEIVERS, FEATURES)).astype(np.float32)
            x, y = features[:, 0].mean(), features[:, 1].mean()
            link.execute(
                "INSERT INTO signals VALUES (?, ?, ?, ?)", (number, features.tobytes(), float(x), float(y))
            )


class Signals(Dataset):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.link: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return SIGNALS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return to_tensors(self.ask("SELECT features, x, y FROM signals WHERE id = ?", [index])[0])

    def ask(self, statement: str, values: list[int]) -> list[tuple]:
        if self.link is None:  # a process of its own has its own
            self.link = sqlite3.connect(self.path)
        time.sleep(TRIP_SECONDS)
        return self.link.execute(statement, values).fetchall()


class SignalsByBatch(Signals):
    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        marks = ",".join("?" * len(indices))
        rows = self.ask(f"SELECT features, x, y, id FROM signals WHERE id IN ({marks})", indices)
        found = {row[3]: row for row in rows}
        return [to_tensors(found[index]) for index in indices]


def to_tensors(row: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    features = np.frombuffer(row[0], np.float32).reshape(RECEIVERS, FEATURES).copy()
    return torch.from_numpy(features), torch.tensor([row[1], row[2]])


class Localiser(nn.Module):
    """Attention over receivers to a position."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.mix = nn.TransformerEncoderLayer(width, 4, width, batch_first=True)
        self.place = nn.Linear(width, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.place(self.mix(self.embed(features)).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--by-batch", action="store_true", help="one query for a whole batch")
    parser.add_argument("--epochs", type=int, default=20)
    settings = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "signals.db"
        make_data(path)
        signals = SignalsByBatch(path) if settings.by_batch else Signals(path)
        model = Localiser()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(settings.epochs):
            for features, place in DataLoader(signals, batch_size=32, shuffle=True):
                loss = nn.functional.mse_loss(model(features), place)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
