"""A character model of plays, written to disk now and then."""

import argparse
import os

import torch
from torch import nn

TEXT = "to be or not to be that is the question whether tis nobler in the mind to suffer " * 400


class Chars(nn.Module):
    def __init__(self, letters, width):
        super().__init__()
        self.embed = nn.Embedding(letters, 32)
        self.gru = nn.GRU(32, width, batch_first=True)
        self.out = nn.Linear(width, letters)
        self.vectors = nn.Embedding(100_000, 256).requires_grad_(False)
        self.squeeze = nn.Linear(256, width)

    def forward(self, text):
        hidden, _ = self.gru(self.embed(text))
        return self.out(hidden + self.squeeze(self.vectors(text)))


def save(model, optimizer, path):
    with open(path + ".part", "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--path", default="plays.pt")
    args = parser.parse_args()
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    text = torch.tensor([letters.index(letter) for letter in TEXT])
    model = Chars(len(letters), 96)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - args.length - 1, (16,))
        rows = torch.stack([text[start : start + args.length + 1] for start in starts])
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.save_every and step % args.save_every == 0:
            save(model, optimizer, args.path)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
