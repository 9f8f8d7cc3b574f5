"""A slow training script, as people write them: every sample opens its file anew.

The data is made once, in a temporary folder: 4 shards of 512 radar-like patches, 64 x 64. Run it
under `stoker run examples/slow_reads.py` and see where the step goes; let `stoker tune` find settings for it;
or run it with `--keep-open`, which maps each file once, or `--feed`, which leaves the reading to Stoker.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stoker

SHARDS, SAMPLES, SIDE, BATCH = 4, 512, 64, 8


def make_data(folder: Path) -> None:
    """Log-amplitude speckle in shards, as a real set of patches lies on disk."""
    generator = np.random.default_rng(0)
    for number in range(SHARDS):
        speckle = generator.standard_gamma(4.0, (SAMPLES, SIDE, SIDE), dtype=np.float32)
        np.save(folder / f"shard{number:02d}.npy", np.log(0.25 * speckle))


class Patches(Dataset):
    def __init__(self, folder: Path, keep_open: bool) -> None:
        self.files = sorted(folder.glob("*.npy"))
        self.maps = [np.load(file, mmap_mode="r") for file in self.files] if keep_open else None

    def __len__(self) -> int:
        return SHARDS * SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        shard, within = divmod(index, SAMPLES)
        patches = np.load(self.files[shard]) if self.maps is None else self.maps[shard]
        return torch.from_numpy(patches[within].copy()).unsqueeze(0)


def make_loader(folder: Path, settings: argparse.Namespace) -> DataLoader:
    if settings.feed:
        source = stoker.NpySource(folder)
        return stoker.Feed(source, batch_size=BATCH, shuffle=True, device="cpu", transform=with_channel)
    return DataLoader(Patches(folder, settings.keep_open), batch_size=BATCH, shuffle=True)


def with_channel(batch: torch.Tensor) -> torch.Tensor:
    return batch.unsqueeze(1)


def epochs(loader: DataLoader) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=8),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=4),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, stride=4),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 8, stride=8),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep-open", action="store_true", help="map each file once")
    parser.add_argument("--feed", action="store_true", help="stoker.Feed in the DataLoader's place")
    parser.add_argument("--steps", type=int, default=5000)
    settings = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a model this small gains nothing by more
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        loader = make_loader(Path(folder), settings)
        model = autoencoder()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, batch in enumerate(epochs(loader)):
            if step == settings.steps:
                break
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 40 == 0:
                print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
