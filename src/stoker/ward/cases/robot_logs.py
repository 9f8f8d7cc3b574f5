"""Next move of a robot arm from its log: many short channels for each moment."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Moments(Dataset):
    def __init__(self, count, channels, joined):
        made = torch.Generator().manual_seed(4)
        self.log = torch.randn(count, channels, 6, generator=made)
        self.names = [f"joint_{k}" for k in range(channels)]
        self.joined = joined

    def __len__(self):
        return len(self.log)

    def __getitem__(self, index):
        moment = self.log[index]
        if self.joined:
            return moment
        return {name: moment[k].clone() for k, name in enumerate(self.names)}


class Arm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(channels * 6, 128), nn.ReLU(), nn.Linear(128, channels * 6))

    def forward(self, moments):
        return self.net(moments.flatten(1))


def table(batch, names):
    if isinstance(batch, torch.Tensor):
        return batch
    return torch.stack([batch[name] for name in names], 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--channels", type=int, default=40)
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--joined", action="store_true")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    moments = Moments(args.count, args.channels, args.joined)
    loader = DataLoader(
        moments, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0,
        pin_memory=args.pin,
    )  # fmt: skip
    arm = Arm(args.channels).to(args.device)
    optimizer = torch.optim.Adam(arm.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for batch in loader:
            now = table(batch, moments.names).to(args.device, non_blocking=args.pin)
            loss = nn.functional.mse_loss(arm(now), now.flatten(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
