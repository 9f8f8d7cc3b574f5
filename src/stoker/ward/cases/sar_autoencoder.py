"""A residual autoencoder for radar images on a GPU."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(torch.relu(self.norm2(self.conv1(torch.relu(self.norm1(x))))))


class Autoencoder(nn.Module):
    def __init__(self, base, blocks):
        super().__init__()
        self.enter = nn.Conv2d(1, base, 5, stride=2, padding=2)
        self.body = nn.Sequential(*(Block(base) for _ in range(blocks)))
        self.leave = nn.ConvTranspose2d(base, 1, 4, stride=2, padding=1)

    def forward(self, image):
        return self.leave(self.body(self.enter(image)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--base", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--card-gb", type=float, default=0.0, help="use no more of the card than this")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--tidy", action="store_true")
    parser.add_argument("--steps", type=int, default=8000)
    args = parser.parse_args()
    if args.card_gb:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(args.card_gb * 2**30 / whole)
    torch.manual_seed(42)
    shape = torch.channels_last if args.half else torch.contiguous_format
    model = Autoencoder(args.base, args.blocks).to(args.device).to(memory_format=shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(4 * args.batch, 1, args.side, args.side).to(args.device)
    for step in range(args.steps):
        batch = images[torch.randint(len(images), (args.batch,), device=args.device)]
        with torch.autocast(args.device, torch.bfloat16, enabled=args.half):
            loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.tidy:
            torch.cuda.empty_cache()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
