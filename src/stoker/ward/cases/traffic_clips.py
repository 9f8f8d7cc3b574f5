"""Cars or none in clips of a traffic camera."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Clips(IterableDataset):
    """Each worker plays its own camera."""

    def __init__(self, clips, frames, height, width):
        self.clips, self.shape = clips, (frames, height, width)

    def __iter__(self):
        info = get_worker_info()
        camera, cameras = (info.id, info.num_workers) if info else (0, 1)
        for number in range(camera, self.clips, cameras):
            clip = np.full(self.shape, number % 251, np.float32)
            yield torch.from_numpy(clip), float(number % 2)


class Watcher(nn.Module):
    def __init__(self, frames):
        super().__init__()
        self.net = nn.Sequential(
            nn.AvgPool2d(8), nn.Conv2d(frames, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.out = nn.Linear(16, 1)

    def forward(self, clip):
        return self.out(self.net(clip / 255).flatten(1)).squeeze(1)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--clips", type=int, default=3000)
    cli.add_argument("--frames", type=int, default=12)
    cli.add_argument("--workers", type=int, default=2)
    cli.add_argument("--batch", type=int, default=8)
    cli.add_argument("--epochs", type=int, default=20)
    ns = cli.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clips = DataLoader(
        Clips(ns.clips, ns.frames, 240, 320), ns.batch, num_workers=ns.workers, prefetch_factor=3
    )
    watcher = Watcher(ns.frames)
    optimizer = torch.optim.Adam(watcher.parameters(), lr=1e-3)
    step = 0
    for _ in range(ns.epochs):
        for clip, cars in clips:
            loss = nn.functional.binary_cross_entropy_with_logits(watcher(clip), cars.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(step, f"{loss.item():.4f}", flush=True)
