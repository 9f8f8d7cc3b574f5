"""A slow training script, as people write them: 3D patches, batch 1, one worker, prefetch 1.

The volume is made once, in a temporary folder: 160 x 256 x 256 voxels. Patches of 24 x 64 x 64 are cut and
normalised one by one. Run it under `stoker doctor examples/slow_patches.py`, then `stoker tune` it.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOLUME, PATCH = (160, 256, 256), (24, 64, 64)


def make_data(path: Path) -> None:
    """Sheets of papyrus, and noise."""
    generator = np.random.default_rng(0)
    volume = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=VOLUME)
    for depth in range(VOLUME[0]):
        volume[depth] = np.sin(depth / 6 + np.linspace(0, 9, VOLUME[2])) + generator.standard_normal(
            VOLUME[1:]
        )
    volume.flush()


class Patches(Dataset):
    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self.volume: np.ndarray | None = None
        generator = np.random.default_rng(1)
        room = [size - edge for size, edge in zip(VOLUME, PATCH, strict=True)]
        self.corners = np.stack([generator.integers(0, most, count) for most in room], 1)

    def __len__(self) -> int:
        return len(self.corners)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.volume is None:  # a process of its own maps it itself
            self.volume = np.load(self.path, mmap_mode="r")
        z, y, x = self.corners[index]
        patch = np.array(self.volume[z : z + PATCH[0], y : y + PATCH[1], x : x + PATCH[2]])
        low, high = np.percentile(patch, (1, 99))
        patch = np.clip((patch - low) / (high - low), 0, 1).astype(np.float32)
        return torch.from_numpy(patch)[None], torch.from_numpy(patch[None] > 0.5).float()


class Ink(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down = nn.Conv3d(1, width, 4, stride=4)
        self.mix = nn.Conv3d(width, width, 3, padding=1)
        self.up = nn.ConvTranspose3d(width, 1, 4, stride=4)

    def forward(self, patch: torch.Tensor) -> torch.Tensor:
        return self.up(torch.relu(self.mix(torch.relu(self.down(patch)))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    settings = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scroll.npy"
        make_data(path)
        loader = DataLoader(
            Patches(path, 2000),
            batch_size=settings.batch,
            shuffle=True,
            num_workers=settings.workers,
            prefetch_factor=settings.prefetch,
        )
        model = Ink()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(settings.epochs):
            for patch, ink in loader:
                loss = nn.functional.binary_cross_entropy_with_logits(model(patch), ink)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
