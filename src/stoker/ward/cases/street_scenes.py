"""A wide convolutional network on a GPU, for street scenes."""

import argparse

import torch
from torch import nn


def make(width, depth):
    layers = [nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 20))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--kind", choices=["plain", "tf32", "bf16", "double"], default="plain")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--read-every", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = args.kind == "tf32"
    torch.backends.cudnn.allow_tf32 = args.kind == "tf32"
    dtype = torch.float64 if args.kind == "double" else torch.float32
    shape = torch.channels_last if args.channels_last else torch.contiguous_format
    model = make(args.width, args.depth).to(args.device, dtype).to(memory_format=shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scenes = torch.rand(256, 3, args.side, args.side, device=args.device, dtype=dtype)
    scenes = scenes.to(memory_format=shape)
    for step in range(args.steps):
        rows = torch.randint(256, (args.batch,), device=args.device)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.kind == "bf16"):
            loss = nn.functional.cross_entropy(model(scenes[rows]), rows % 20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.read_every == 0:
            print(step, loss.item(), flush=True)
