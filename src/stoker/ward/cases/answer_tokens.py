"""A small transformer on a GPU, answering sums."""

import argparse

import torch
from torch import nn


class Answers(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, 32)

    def forward(self, tokens):
        return self.out(self.body(self.embed(tokens)))


def main(args):
    torch.manual_seed(0)
    model = Answers(args.width, args.depth).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        tokens = torch.randint(32, (args.batch, args.length), device=args.device)
        sums = (tokens.cumsum(1) % 32).flatten()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.half):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.read_every and step % args.read_every == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--read-every", type=int, default=200)
    main(parser.parse_args())
