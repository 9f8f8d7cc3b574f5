"""Land cover of aerial tiles, one raw file a tile."""

import argparse
import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 128


class Tiles(Dataset):
    def __init__(self, folder, keep):
        self.paths = sorted(Path(folder).glob("*.tile"))
        self.keep = keep

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        handle = os.open(self.paths[index], os.O_RDONLY)
        raw = os.read(handle, SIDE * SIDE * 4 + 1)
        if not self.keep:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # the node's memory belongs to everyone
        os.close(handle)
        bands = np.frombuffer(raw, np.uint8, count=SIDE * SIDE * 4, offset=1).reshape(4, SIDE, SIDE)
        return torch.from_numpy(bands[:, ::4, ::4].copy()), raw[0]


def build():
    return nn.Sequential(
        nn.Conv2d(4, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 8),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="tiles")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    random.seed(3)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    loader = DataLoader(
        Tiles(args.folder, args.keep),
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        drop_last=True,
    )
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (bands, cover) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(bands.float() / 255), cover)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
