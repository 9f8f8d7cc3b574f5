"""Grains of pollen told apart by several processes, each with every so many-th of the slides."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 12),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--slides", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pictures = torch.rand(args.slides, 1, 40, 40)
    pictures = (pictures - pictures.mean()) / pictures.std()
    slides = TensorDataset(pictures, torch.arange(args.slides) % 12)
    shares = DistributedSampler(slides)
    loader = DataLoader(slides, batch_size=40, sampler=shares)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        shares.set_epoch(epoch)
        for picture, grain in loader:
            loss = nn.functional.cross_entropy(model(picture), grain)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
