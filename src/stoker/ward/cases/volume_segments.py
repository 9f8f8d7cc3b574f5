"""Segments of 3D patches on a GPU, patch by patch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, count, shape):
        self.count, self.shape = count, shape

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index % 64)
        patch = torch.rand(1, *self.shape, generator=made)
        return patch, (patch > 0.5).float()


def block(inside, outside):
    return nn.Sequential(
        nn.Conv3d(inside, outside, 3, padding=1), nn.InstanceNorm3d(outside), nn.LeakyReLU(),
        nn.Conv3d(outside, outside, 3, padding=1), nn.InstanceNorm3d(outside), nn.LeakyReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.deep = block(1, width), block(width, 2 * width)
        self.up, self.out = block(3 * width, width), nn.Conv3d(width, 1, 1)

    def forward(self, patch):
        high = self.down(patch)
        low = self.deep(nn.functional.max_pool3d(high, 2))
        low = nn.functional.interpolate(low, scale_factor=2)
        return self.out(self.up(torch.cat([high, low], 1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", type=int, nargs=3, default=[24, 48, 48])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--adamw", action="store_true")
    parser.add_argument("--card-gb", type=float, default=0.0, help="use no more of the card than this")
    parser.add_argument("--patches", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    if args.card_gb:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(args.card_gb * 2**30 / whole)
    torch.manual_seed(0)
    loader = DataLoader(
        Patches(args.patches, args.shape), args.batch, shuffle=True, num_workers=args.workers,
        prefetch_factor=args.ahead if args.workers else None, pin_memory=args.device == "cuda",
    )  # fmt: skip
    model = UNet(args.width).to(args.device)
    if args.adamw:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    for epoch in range(args.epochs):
        for step, (patch, segments) in enumerate(loader):
            patch = patch.to(args.device, non_blocking=True)
            segments = segments.to(args.device, non_blocking=True)
            loss = nn.functional.binary_cross_entropy_with_logits(model(patch), segments)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
