"""Radar patches rebuilt from small codes, as notes 000 and 001 had it: each sample opens its file anew.

44 ragged .npy files, batch 32, no workers, float32. `--disk-ms` is what the note's disk took for a sample;
`--card-gb` is the note's card.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class SarPatches(Dataset):
    """The patches of all files, by number."""

    def __init__(self, folder, disk_ms):
        self.paths = sorted(Path(folder).glob("*.npy"))
        self.ends = np.cumsum([len(np.load(path, mmap_mode="r")) for path in self.paths])
        self.disk_ms = disk_ms

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        file = int(np.searchsorted(self.ends, index, side="right"))
        first = self.ends[file - 1] if file else 0
        patches = np.load(self.paths[file], mmap_mode="r")
        time.sleep(self.disk_ms / 1e3)
        return torch.from_numpy(np.array(patches[index - first]))[None]


def conv(wide_in, wide_out, stride=1):
    return nn.Conv2d(wide_in, wide_out, 3, stride=stride, padding=1, bias=False)


class PreActResidualBlock(nn.Module):
    def __init__(self, wide_in, wide_out, stride=1):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(max(1, wide_in // 8), wide_in), conv(wide_in, wide_out, stride)
        self.norm2, self.conv2 = nn.GroupNorm(max(1, wide_out // 8), wide_out), conv(wide_out, wide_out)
        self.attention = nn.Identity()
        same = wide_in == wide_out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(wide_in, wide_out, 1, stride=stride, bias=False)

    def forward(self, x):
        inner = self.conv1(functional.relu(self.norm1(x)))
        return self.attention(self.conv2(functional.relu(self.norm2(inner)))) + self.skip(x)


class Enlarge(nn.Module):
    def __init__(self, wide_in, wide_out):
        super().__init__()
        self.conv = conv(wide_in, wide_out)

    def forward(self, x):
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class ResidualAutoencoder(nn.Module):
    def __init__(self, base=64, latent=16):
        super().__init__()
        down = [nn.Conv2d(1, base, 7, stride=2, padding=3)]
        wide = base
        for stage, width in enumerate((1, 2, 4, 8)):
            for number in range(3):
                down.append(PreActResidualBlock(wide, base * width, 2 if stage and not number else 1))
                wide = base * width
        self.encoder = nn.Sequential(*down, nn.ReLU(), nn.Conv2d(wide, latent, 3, padding=1))
        up = [nn.Conv2d(latent, wide, 3, padding=1, bias=False)]
        for width in (4, 2, 1):
            up.append(Enlarge(wide, base * width))
            wide = base * width
            up += [PreActResidualBlock(wide, wide) for _ in range(3)]
        up += [nn.ConvTranspose2d(wide, wide, 2, stride=2), nn.ReLU(), nn.Conv2d(wide, 1, 3, padding=1)]
        self.decoder = nn.Sequential(*up, nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def ssim(one, other):
    """The mean structural similarity, by a Gaussian window of 11 pixels."""
    places = torch.arange(11, device=one.device) - 5.0
    weights = torch.exp(-places.square() / (2 * 1.5**2))
    weights = weights / weights.sum()
    moments = torch.cat([one, other, one * one, other * other, one * other], 1)
    flat = functional.pad(moments, (5,) * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
    flat = functional.conv2d(functional.conv2d(flat, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
    mean1, mean2, square1, square2, product = flat.view(moments.shape).unbind(1)
    both, squares = mean1 * mean2, mean1.square() + mean2.square()
    top = (2 * both + 1e-4) * (2 * (product - both) + 9e-4)
    return (top / ((squares + 1e-4) * (square1 + square2 - squares + 9e-4))).mean()


def parse(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="a folder of .npy files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--base", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--disk-ms", type=float, default=0.0)
    parser.add_argument("--card-gb", type=float, default=0.0, help="use no more of the card than this")
    parser.add_argument("--epochs", type=int, default=30)
    return parser.parse_args(words)


def train(args):
    if args.card_gb:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(args.card_gb * 2**30 / whole)
    torch.manual_seed(0)
    if args.device == "cpu":  # to try it on little data, which gains nothing by more
        torch.set_num_threads(1)
    patches = SarPatches(args.data, args.disk_ms)
    loader = DataLoader(patches, args.batch, shuffle=True, num_workers=args.workers, drop_last=True)
    model = ResidualAutoencoder(args.base).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            batch = batch.to(args.device)
            rebuilt = model(batch)
            loss = 0.7 * functional.mse_loss(rebuilt, batch) + 0.3 * (1 - ssim(rebuilt, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            yield len(batch)


if __name__ == "__main__":
    for _ in train(parse()):
        pass
