"""Density of tissue in patches of a scan, kept as a zarr array."""

import argparse

import numpy as np
import tensorstore
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, path, edge, count):
        self.spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": path}}
        self.edge = edge
        self.volume = None
        shape = tensorstore.open(self.spec, read=True).result().shape
        draw = np.random.default_rng(8)
        cells = [draw.integers(0, side // edge, count) * edge for side in shape]
        self.corners = np.stack(cells, 1)

    def __len__(self):
        return len(self.corners)

    def __getitem__(self, index):
        if self.volume is None:  # in the process that reads
            self.volume = tensorstore.open(self.spec, read=True).result()
        z, y, x = (int(corner) for corner in self.corners[index])
        e = self.edge
        patch = self.volume[z : z + e, y : y + e, x : x + e].read().result()
        voxels = torch.from_numpy(np.array(patch, np.float32))[None] / 255
        return voxels, voxels.mean().view(1)


def main(args):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    patches = Patches(args.scan, args.edge, args.count)
    loader = DataLoader(
        patches,
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        prefetch_factor=args.ahead if args.workers else None,
        multiprocessing_context="spawn" if args.workers else None,
        persistent_workers=args.workers > 0,
    )
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for voxels, density in loader:
            loss = nn.functional.mse_loss(model(voxels), density)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--scan", default="scan.zarr")
    parser.add_argument("--edge", type=int, default=16)
    parser.add_argument("--count", type=int, default=640)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=60)
    main(parser.parse_args())
