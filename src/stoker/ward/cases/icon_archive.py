"""Icons out of a ZIP archive: which of ten sets an icon belongs to."""

import argparse
import io
import zipfile

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Icons(Dataset):
    def __init__(self, archive, once):
        self.archive = archive
        with zipfile.ZipFile(archive) as opened:
            self.names = sorted(opened.namelist())
        self.once = once
        self.opened = None

    def __len__(self):
        return len(self.names)

    def unpack(self, name):
        if not self.once:
            with zipfile.ZipFile(self.archive) as opened:
                return opened.read(name)
        if self.opened is None:
            self.opened = zipfile.ZipFile(self.archive)
        return self.opened.read(name)

    def __getitem__(self, index):
        name = self.names[index]
        pixels = np.array(Image.open(io.BytesIO(self.unpack(name))))
        return torch.from_numpy(pixels)[None].float() / 255, int(name.split("/")[0])


cli = argparse.ArgumentParser()
cli.add_argument("archive", nargs="?", default="icons.zip")
cli.add_argument("--workers", type=int, default=2)
cli.add_argument("--rounds", type=int, default=50)
cli.add_argument("--once", action="store_true")

if __name__ == "__main__":
    given = cli.parse_args()
    torch.manual_seed(9)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 64, 10),
    )  # fmt: skip
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    icons = DataLoader(
        Icons(given.archive, given.once), 8, shuffle=True, num_workers=given.workers,
        persistent_workers=given.workers > 0,
    )  # fmt: skip
    for turn in range(given.rounds):
        for n, (icon, kind) in enumerate(icons):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(icon), kind)
            loss.backward()
            opt.step()
            if n % 25 == 0:
                print(turn, n, f"{loss.item():.3f}", flush=True)
