"""Which court wrote this: hashed n-grams of judgments and a bag of embeddings."""

import argparse
import random
import re
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "mnrslx"]
BUCKETS = 20_000


class Judgments(Dataset):
    def __init__(self, count, words, grams):
        draw = random.Random(7)
        self.courts = [draw.randrange(5) for _ in range(count)]
        self.texts = [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]
        self.grams = grams
        self.pattern = re.compile(r"[a-z]+")

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        words = self.pattern.findall(self.texts[index].lower())[:400]
        ids = [zlib.crc32(word.encode()) % BUCKETS for word in words[:64]]
        for n in range(2, self.grams + 1):
            spans = (" ".join(words[i : i + n]) for i in range(len(words) - n))
            ids.extend(sorted(zlib.crc32(span.encode()) % BUCKETS for span in spans)[:64])
        return torch.tensor(ids[:128]), self.courts[index]


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, 64, mode="mean", sparse=True)
        self.head = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                  nn.Linear(width, 5))  # fmt: skip

    def forward(self, ids):
        return self.head(self.bag(ids))


def main(args):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    judgments = Judgments(1200, args.words, args.grams)
    model = Reader(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        judgments, args.batch, shuffle=True, num_workers=args.workers, drop_last=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    for epoch in range(args.epochs):
        for ids, court in loader:
            loss = nn.functional.cross_entropy(model(ids), court)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch:3d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--grams", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=100)
    main(parser.parse_args())
