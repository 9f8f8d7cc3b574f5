"""Cats, dogs and others from a folder of JPEGs, classes by folder."""

import argparse
import pathlib

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pets(Dataset):
    def __init__(self, root):
        self.kinds = sorted(path.name for path in pathlib.Path(root).iterdir())
        self.items = [
            (path, number)
            for number, kind in enumerate(self.kinds)
            for path in sorted(pathlib.Path(root, kind).glob("*.jpg"))
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, kind = self.items[index]
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))
            pixels = np.asarray(image.convert("RGB").resize((64, 64)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255, kind


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", default="pets")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pets = Pets(args.root)
    loader = DataLoader(pets, 8, shuffle=True, num_workers=args.workers, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, 1, 1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, len(pets.kinds)),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for step, (image, kind) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(image), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"{epoch} {step} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
