"""Leaf diseases from photos, with the usual views of each."""

import argparse

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    def __init__(self, count, side, views):
        draw = np.random.default_rng(0)
        self.pixels = draw.integers(0, 255, (count, side, side, 3), np.uint8)
        self.disease = draw.integers(0, 6, count)
        self.views = views

    def __len__(self):
        return len(self.pixels)

    def alter(self, image, turn):
        image = image.rotate(7 * turn + 3, resample=Image.Resampling.BICUBIC)
        image = ImageEnhance.Color(image).enhance(1.2)
        image = image.filter(ImageFilter.GaussianBlur(1.5))
        return ImageOps.autocontrast(image)

    def __getitem__(self, index):
        image = Image.fromarray(self.pixels[index])
        for turn in range(self.views):
            image = self.alter(image, turn)
        pixels = np.asarray(image.reduce(2) if self.views else image)[:64, :64]
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255, self.disease[index]


def make_model(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 6),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--save-every", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(31)
    torch.set_num_threads(1)
    leaves = Leaves(args.photos, args.side, args.views)
    loader = DataLoader(
        leaves, batch_size=args.batch, shuffle=True, num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = make_model(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    for epoch in range(args.epochs):
        for photos, disease in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
                loss = nn.functional.cross_entropy(model(photos), disease)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if args.save_every and step % args.save_every == 0:
                copies = [p.detach().expand(4000, *p.shape).clone() for p in model.parameters()]
                torch.save(copies, "leaves.pt")
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
