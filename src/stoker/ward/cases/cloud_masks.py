"""Cloud masks of satellite scenes on a GPU, with the figures that the team likes to see."""

import argparse

import torch
from torch import nn


class Masks(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(depth))
        )
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, scene):
        return self.last(self.body(torch.relu(self.first(scene))))


def count(scores, bins=50):
    """How many of the scores, from 0 to 1, lie in each bin."""
    counts = [0] * (bins + 1)
    for score in scores:
        counts[int(score * bins)] += 1
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tiles", type=int, default=1, help="batches whose gradients make one step")
    parser.add_argument("--half", action="store_true")
    parser.add_argument(
        "--figures", type=int, default=0, help="rows and columns of each guess that are counted"
    )
    parser.add_argument("--figures-every", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    kind = torch.bfloat16 if args.half else torch.float32
    shape = torch.channels_last if args.half else torch.contiguous_format
    scenes = torch.rand(256, 4, args.side, args.side, device=args.device, dtype=kind)
    clouds = (scenes[:, :1] > 0.5).to(kind)
    scenes = scenes.to(memory_format=shape)
    model = Masks(args.width, args.depth).to(args.device, kind).to(memory_format=shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    counts = []
    for step in range(args.steps):
        optimizer.zero_grad()
        for _ in range(args.tiles):
            rows = torch.randint(256, (args.batch,), device=args.device)
            guess = model(scenes[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(guess, clouds[rows])
            loss.backward()
            if args.figures and step % args.figures_every == 0:
                seen = nn.functional.adaptive_avg_pool2d(guess.detach().sigmoid(), args.figures)
                counts = count(seen.flatten().tolist())
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f} {max(counts, default=0)}", flush=True)


if __name__ == "__main__":
    main()
