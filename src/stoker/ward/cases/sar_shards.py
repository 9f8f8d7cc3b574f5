"""An autoencoder over radar images in a few dozen .npy files."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ShardDataset(Dataset):
    def __init__(self, folder, hold):
        self.paths = sorted(Path(folder).glob("*.npy"))
        lengths = [np.load(path, mmap_mode="r").shape[0] for path in self.paths]
        self.ends = np.cumsum(lengths)
        self.hold = hold
        self.maps = {}

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        shard = int(np.searchsorted(self.ends, index, side="right"))
        first = int(self.ends[shard - 1]) if shard else 0
        images = self.maps.get(shard)
        if images is None:
            images = np.load(self.paths[shard], mmap_mode="r")
            if self.hold:
                self.maps[shard] = images
        return torch.from_numpy(np.array(images[index - first]))


class Autoencoder(nn.Module):
    def __init__(self, latent=64):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, latent))
        self.decode = nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, 1024))

    def forward(self, image):
        return self.decode(self.encode(image)).view_as(image)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="shards")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    loader = DataLoader(
        ShardDataset(args.folder, args.hold),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for images in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(images), images)
            loss.backward()
            optimizer.step()
            running += loss.item() * len(images)
        print(f"Epoch {epoch + 1}: loss {running / len(loader.dataset):.5f}", flush=True)


if __name__ == "__main__":
    main()
