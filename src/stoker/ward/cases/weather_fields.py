"""Tomorrow's temperature from today's fields, stored as compressed blocks with an index."""

import argparse
import os
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GRID = (4, 32, 32)
FIELD = 4 * 32 * 32 * 4


class Fields(Dataset):
    def __init__(self, stem):
        self.offsets = np.load(f"{stem}.index.npy")
        self.block = int(np.load(f"{stem}.block.npy"))
        self.count = int(np.load(f"{stem}.count.npy"))
        self.file = os.open(f"{stem}.bin", os.O_RDONLY)

    def __len__(self):
        return self.count - 1

    def __getitem__(self, hour):
        return self.field_at(hour), self.field_at(hour + 1)[0, ::8, ::8].reshape(-1)

    def field_at(self, hour):
        number, place = divmod(hour, self.block)
        begin, end = self.offsets[number : number + 2]
        raw = zlib.decompress(os.pread(self.file, int(end - begin), int(begin)))
        field = np.frombuffer(raw, np.float32, count=FIELD // 4, offset=place * FIELD)
        return torch.from_numpy(field.reshape(GRID).copy())


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU())
        self.head = nn.Linear(16 * 64, 16)

    def forward(self, field):
        return self.head(self.body(field).flatten(1))


def train(stem, workers, epochs, batch):
    torch.manual_seed(13)
    torch.set_num_threads(1)
    fields = Fields(stem)
    forecast = Forecast()
    optimizer = torch.optim.AdamW(forecast.parameters(), lr=2e-3)
    loader = DataLoader(fields, batch, True, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(epochs):
        for today, tomorrow in loader:
            loss = nn.functional.l1_loss(forecast(today), tomorrow)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.5f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--stem", default="fields")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--epochs", type=int, default=100)
    p.add_argument("--batch", type=int, default=16)
    a = p.parse_args()
    train(a.stem, a.workers, a.epochs, a.batch)
