"""A deeper convolutional network for scenes, with data that is already in memory."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Basic(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.short(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = args.width
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), Basic(width, width, 1), Basic(width, 2 * width, 2),
        Basic(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip
    scenes = torch.rand(3200, 3, 32, 32)
    loader = DataLoader(
        TensorDataset(scenes, torch.arange(3200) % 10), args.batch, shuffle=True, num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for epoch in range(args.epochs):
        for step, (scene, kind) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(scene), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
