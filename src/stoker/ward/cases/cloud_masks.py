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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--figures", type=int, default=12, help="how many are read in each step")
    parser.add_argument("--figures-every", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    scenes = torch.rand(256, 4, args.side, args.side, device=args.device)
    clouds = (scenes[:, :1] > 0.5).float()
    model = Masks(args.width, args.depth).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    weights = [value for value in model.parameters() if value.dim() > 1]
    for step in range(args.steps):
        rows = torch.randint(256, (args.batch,), device=args.device)
        guess = model(scenes[rows])
        loss = nn.functional.binary_cross_entropy_with_logits(guess, clouds[rows])
        optimizer.zero_grad()
        loss.backward()
        if step % args.figures_every == 0:
            sizes = [weights[k % len(weights)].grad.norm().item() for k in range(args.figures)]
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f} {max(sizes, default=0):.4f}", flush=True)


if __name__ == "__main__":
    main()
