"""The period of the swell from records of buoys, in compressed files of an hour each, read in order."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    """Records by number; the hour that was read last stays open."""

    def __init__(self, folder, each):
        self.paths = sorted(Path(folder).glob("*.npz"))
        self.each = each
        self.hour, self.swell, self.period = None, None, None

    def __len__(self):
        return len(self.paths) * self.each

    def __getitem__(self, index):
        hour, record = divmod(index, self.each)
        if hour != self.hour:
            with np.load(self.paths[hour]) as found:
                self.hour, self.swell, self.period = hour, found["swell"], found["period"]
        return torch.from_numpy(self.swell[record, ::4].astype(np.float32) / 4000), float(self.period[record])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="hours")
    parser.add_argument("--each", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Records(args.folder, args.each), args.batch, num_workers=args.workers, prefetch_factor=args.ahead,
        persistent_workers=True,
    )  # fmt: skip
    model = nn.Sequential(
        nn.Conv1d(1, args.width, 15, stride=2), nn.ReLU(), nn.Conv1d(args.width, args.width, 9, stride=4),
        nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(8 * args.width, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (swell, period) in enumerate(loader):
            loss = nn.functional.mse_loss(model(swell[:, None])[:, 0], period.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 64 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
