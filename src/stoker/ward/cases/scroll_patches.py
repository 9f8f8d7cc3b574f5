"""Ink in patches of a scanned scroll: a volume in an archive, patches made ready one at a time."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def smooth(slices):
    """Leave out the fine ripples of each slice, in place."""
    for number, plane in enumerate(slices):
        waves = np.fft.rfft2(plane)
        waves[:, waves.shape[1] // 2 :] = 0
        slices[number] = np.fft.irfft2(waves, plane.shape)


class ScrollPatches(Dataset):
    """Patches by number. The archive gives each who asks one at a time, after `rest` seconds."""

    def __init__(self, path, side, patch, count, passes, rest):
        self.path, self.side, self.patch, self.passes, self.rest = path, side, patch, passes, rest
        self.volume = None
        draw = np.random.default_rng(5)
        self.corners = np.stack([draw.integers(0, side - edge, count) for edge in patch], 1)

    def __len__(self):
        return len(self.corners)

    def __getitem__(self, index):
        if self.volume is None:
            self.volume = np.memmap(self.path, np.float32, mode="r").reshape((self.side,) * 3)
        z, y, x = self.corners[index]
        d, h, w = self.patch
        time.sleep(self.rest)
        patch = np.array(self.volume[z : z + d, y : y + h, x : x + w])
        for axis in list(range(3)) * self.passes:
            smooth(np.moveaxis(patch, axis, 0))
        low, high = np.percentile(patch[::2, ::2, ::2], (1, 99))
        patch = np.clip((patch - low) / (high - low), 0, 1).astype(np.float32)
        return torch.from_numpy(patch)[None], torch.from_numpy(patch[None, ::4, ::4, ::4] > 0.5).float()


class Ink(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.down = nn.Conv3d(1, width, 4, stride=4)
        self.mix = nn.Conv3d(width, width, 3, padding=1)
        self.out = nn.Conv3d(width, 1, 1)

    def forward(self, patch):
        return self.out(torch.relu(self.mix(torch.relu(self.down(patch)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volume", default="scroll.f32")
    parser.add_argument("--patch", type=int, nargs=3, default=[24, 48, 48])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--start", default="spawn")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--rest", type=float, default=0.0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    patches = ScrollPatches(args.volume, 128, args.patch, args.count, args.passes, args.rest)
    loader = DataLoader(
        patches, args.batch, shuffle=True, num_workers=args.workers, prefetch_factor=args.ahead,
        multiprocessing_context=args.start, persistent_workers=True,
    )  # fmt: skip
    model = Ink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    for epoch in range(args.epochs):
        for step, (patch, ink) in enumerate(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(model(patch), ink)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
