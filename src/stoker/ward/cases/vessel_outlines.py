"""Outlines of vessels in retina pictures: a small U-Net."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Retinas(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(3, 64, 64, generator=generator)
        return picture, (picture.mean(0, keepdim=True) > 0.5).float()


class DoubleConv(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2 = DoubleConv(3, 12), DoubleConv(12, 24)
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.u1, self.out = DoubleConv(24, 12), nn.Conv2d(12, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        return self.out(self.u1(torch.cat([a, self.up(b)], 1)))


def dice(logits, truth):
    guess = logits.sigmoid()
    return 1 - 2 * (guess * truth).sum() / (guess.sum() + truth.sum())


if __name__ == "__main__":
    torch.manual_seed(7)
    torch.set_num_threads(1)
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = DataLoader(Retinas(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    for epoch in range(30):
        for picture, outline in loader:
            logits = net(picture)
            loss = dice(logits, outline) + F.binary_cross_entropy_with_logits(logits, outline)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
