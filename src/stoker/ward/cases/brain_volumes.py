"""Age from a brain scan, whole volumes at a time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Brains(Dataset):
    def __init__(self, count, edge):
        self.count, self.edge = count, edge

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        volume = torch.full((1, self.edge, self.edge, self.edge), index / self.count)
        return volume, torch.tensor([20.0 + index % 60])


class Ageing(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool3d(4)
        self.conv = nn.Conv3d(1, 4, 3, stride=2)
        self.head = nn.Linear(4, 1)

    def forward(self, volume):
        return self.head(torch.relu(self.conv(self.pool(volume))).mean((2, 3, 4)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scans", type=int, default=2000)
    parser.add_argument("--edge", type=int, default=96)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Brains(args.scans, args.edge), args.batch, shuffle=True, num_workers=args.workers,
        prefetch_factor=args.ahead, persistent_workers=True,
    )  # fmt: skip
    model = Ageing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (volume, age) in enumerate(loader):
            loss = nn.functional.l1_loss(model(volume), age)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} mae {loss.item():.2f}", flush=True)


if __name__ == "__main__":
    main()
