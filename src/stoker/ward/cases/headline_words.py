"""Topic of a headline: the archive is a list of lists of words."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 4000


class Headlines(Dataset):
    """An item is one day's headlines: `day` of them."""

    def __init__(self, headlines, day, as_arrays):
        draw = random.Random(5)
        self.day = day
        self.days = headlines // day
        rows = [[f"word{draw.randrange(VOCABULARY)}" for _ in range(8)] for _ in range(headlines)]
        self.rows = rows if not as_arrays else np.array([[int(w[4:]) for w in row] for row in rows], np.int32)

    def __len__(self):
        return self.days

    def __getitem__(self, index):
        rows = self.rows[index * self.day : (index + 1) * self.day]
        if isinstance(rows, np.ndarray):
            ids = torch.from_numpy(rows.astype(np.int64))
        else:
            ids = torch.tensor([[int(word[4:]) for word in row] for row in rows])
        return ids, ids[:, 0] % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--headlines", type=int, default=160_000)
    parser.add_argument("--day", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--as-arrays", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Headlines(args.headlines, args.day, args.as_arrays), batch_size=32, shuffle=True,
        num_workers=args.workers, persistent_workers=True,
    )  # fmt: skip
    bag = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 64), nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 4))
    optimizer = torch.optim.Adam(bag.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for ids, topic in loader:
            loss = nn.functional.cross_entropy(bag(ids.flatten(0, 1)), topic.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
