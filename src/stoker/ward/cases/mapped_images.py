"""A convolutional autoencoder over images in memory-mapped shards."""

import argparse
import bisect
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __init__(self, folder):
        self.arrays = [np.load(path, mmap_mode="r") for path in sorted(Path(folder).glob("*.npy"))]
        self.ends = np.cumsum([len(array) for array in self.arrays]).tolist()

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, index):
        shard = bisect.bisect_right(self.ends, index)
        first = self.ends[shard - 1] if shard else 0
        return torch.from_numpy(np.array(self.arrays[shard][index - first]))[None]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="shards")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 48, 3, 2, 1), nn.ReLU(), nn.Conv2d(48, 96, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(96, 48, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(48, 1, 4, 2, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Shards(args.folder), args.batch, shuffle=True, num_workers=1, persistent_workers=True)
    for epoch in range(args.epochs):
        for image in loader:
            loss = nn.functional.mse_loss(model(image), image)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} mse {loss.item():.5f}", flush=True)
