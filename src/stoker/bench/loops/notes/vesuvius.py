"""Sheets of papyrus in a scan, as note 003 had it: batch 1, one worker, one batch ahead, float32.

A volume and its labels lie in one compressed file. It is held open, but each time that it is asked for an
array all of that array is unpacked, and a patch of 72 x 136 x 136 is cut from it.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class ScrollPatches(Dataset):
    def __init__(self, data, patch, count):
        self.paths = sorted(Path(data).glob("*.npz"))
        self.patch, self.count = patch, count
        self.archives = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.archives is None:  # a process of its own opens them itself
            self.archives = [np.load(path) for path in self.paths]
        archive = self.archives[index % len(self.archives)]
        volume, labels = archive["volume"], archive["labels"]
        corner = [int(torch.randint(size - side + 1, ())) for size, side in zip(volume.shape, self.patch)]
        box = tuple(slice(low, low + side) for low, side in zip(corner, self.patch))
        image = (volume[box].astype(np.float32) / 255 - 0.33) / 0.17
        label = labels[box].copy()
        for axis in range(3):
            if torch.rand(()) < 0.5:
                image, label = np.flip(image, axis), np.flip(label, axis)
        return torch.from_numpy(image.copy())[None], torch.from_numpy(label.copy())[None]


def two(channels, width, stride):
    return nn.Sequential(
        nn.Conv3d(channels, width, 3, stride=stride, padding=1, bias=False),
        nn.InstanceNorm3d(width, affine=True), nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(width, width, 3, padding=1, bias=False),
        nn.InstanceNorm3d(width, affine=True), nn.LeakyReLU(0.01, inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList([two(1, widths[0], 1), *(two(above, below, 2) for above, below in pairs)])
        self.up = nn.ModuleList(nn.ConvTranspose3d(below, above, 2, stride=2) for above, below in pairs)
        self.join = nn.ModuleList(two(2 * width, width, 1) for width in widths[:-1])
        heads = max(min(2, len(widths) - 1), len(widths) - 2)
        self.heads = nn.ModuleList(nn.Conv3d(width, 1, 1) for width in widths[:heads])

    def forward(self, x):
        levels, logits = [], []
        for block in self.down:
            x = block(x)
            levels.append(x)
        for level in reversed(range(len(self.up))):
            x = self.join[level](torch.cat([self.up[level](x), levels[level]], 1))
            if level < len(self.heads):
                logits.insert(0, self.heads[level](x))
        return logits


def loss_of(logits, labels):
    """Dice and cross entropy where there is a label, of all levels, each half as much as the one above."""
    total, weights = 0.0, [0.5**level for level in range(len(logits))]
    for weight, level in zip(weights, logits):
        steps = [whole // part for whole, part in zip(labels.shape[2:], level.shape[2:])]
        there = labels[:, :, :: steps[0], :: steps[1], :: steps[2]].flatten(1)
        known, target, flat = there != 2, (there == 1).float(), level.flatten(1)
        entropy = functional.binary_cross_entropy_with_logits(flat, target, reduction="none")
        entropy = (entropy * known).sum(1) / known.sum(1).clamp_min(1)
        chance = flat.sigmoid() * known
        dice = 1 - (2 * (chance * target).sum(1) + 1) / (chance.sum(1) + (target * known).sum(1) + 1)
        total = total + weight / sum(weights) * (dice * known.any(1) + entropy).mean()
    return total


def parse(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="a folder of .npz files with `volume` and `labels`")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--patch", type=int, nargs=3, default=[72, 136, 136])
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--patches", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=32)
    return parser.parse_args(words)


def train(args):
    torch.manual_seed(0)
    if args.device == "cpu":  # to try it on little data, which gains nothing by more
        torch.set_num_threads(1)
    patches = ScrollPatches(args.data, args.patch, args.patches)
    loader = DataLoader(
        patches, args.batch, shuffle=True, num_workers=args.workers, prefetch_factor=args.ahead,
        drop_last=True, pin_memory=args.device != "cpu",
    )  # fmt: skip
    model = UNet(args.widths).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(loader):
            images, labels = images.to(args.device), labels.to(args.device)
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            yield len(images)


if __name__ == "__main__":
    for _ in train(parse()):
        pass
