"""Counting fish in sonar frames, with a look at the held-out frames as training goes."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def frames(count, seed):
    made = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 1, 32, 32, generator=made)
    return TensorDataset(pictures, pictures.mean((1, 2, 3)) * 20)


def evaluate(model, held_out):
    model.eval()
    with torch.no_grad():
        errors = [(model(picture).squeeze(1) - fish).abs().mean() for picture, fish in held_out]
    model.train()
    return torch.stack(errors).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--held-out", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = DataLoader(frames(6400, 1), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)
    held_out = DataLoader(frames(args.held_out, 2), batch_size=100)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 256, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, best = 0, float("inf")
    for _ in range(args.epochs):
        for picture, fish in train:
            loss = nn.functional.smooth_l1_loss(model(picture).squeeze(1), fish)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if args.every and step % args.every == 0:
                best = min(best, evaluate(model, held_out))
                print(f"step {step}: off by {best:.3f} fish at best", flush=True)


if __name__ == "__main__":
    main()
