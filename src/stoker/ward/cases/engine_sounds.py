"""Worn bearings by ear: spectra of vibration recordings, and a small network on them."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def spectrum(wave, windows):
    spectra = []
    for window in windows:
        hop = window // 8
        frames = np.lib.stride_tricks.sliding_window_view(wave, window)[::hop] * np.hanning(window)
        spectra.append(np.log1p(np.abs(np.fft.rfft(frames, axis=1))).mean(0)[:64])
    return np.concatenate(spectra).astype(np.float32)


class Recordings(Dataset):
    def __init__(self, count, length, windows, beforehand):
        draw = np.random.default_rng(1)
        self.waves = draw.standard_normal((count, length)).astype(np.float32)
        self.worn = (self.waves[:, 0] > 0).astype(np.float32)
        self.windows = windows
        self.ready = [spectrum(wave, windows) for wave in self.waves] if beforehand else None

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        if self.ready is not None:
            return self.ready[index], self.worn[index]
        return spectrum(self.waves[index], self.windows), self.worn[index]


class Ear(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(size, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, spectra):
        return self.layers(spectra).squeeze(1)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--workers", type=int, default=2)
    cli.add_argument("--batch", type=int, default=16)
    cli.add_argument("--length", type=int, default=8192)
    cli.add_argument("--width", type=int, default=256)
    cli.add_argument("--count", type=int, default=600)
    cli.add_argument("--windows", type=int, nargs="+", default=[256, 512, 1024])
    cli.add_argument("--epochs", type=int, default=150)
    cli.add_argument("--beforehand", action="store_true")
    o = cli.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    recordings = Recordings(o.count, o.length, o.windows, o.beforehand)
    ear = Ear(64 * len(o.windows), o.width)
    optimizer = torch.optim.AdamW(ear.parameters(), 1e-3)
    loader = DataLoader(
        recordings, o.batch, shuffle=True, num_workers=o.workers, persistent_workers=o.workers > 0
    )
    for epoch in range(o.epochs):
        for spectra, worn in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(ear(spectra), worn)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", f"{loss.item():.4f}", flush=True)
