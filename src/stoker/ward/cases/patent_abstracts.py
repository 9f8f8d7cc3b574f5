"""Field of a patent from its abstract: a small transformer over abstracts of every length."""

import argparse
import math
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

TOKENS, PAD = 3000, 0


class Abstracts(Dataset):
    def __init__(self, count, typical, spread, longest):
        draw = random.Random(11)
        lengths = [min(longest, max(6, int(typical * math.exp(draw.gauss(0, spread))))) for _ in range(count)]
        self.texts = [[draw.randrange(1, TOKENS) for _ in range(length)] for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = torch.tensor(self.texts[index])
        return text, int(text[0]) % 8


class ByLength:
    """Batches of texts that are about as long as each other, in a random order."""

    def __init__(self, texts, batch):
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        self.batches = [order[k : k + batch] for k in range(0, len(order) - batch + 1, batch)]

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))

    def __len__(self):
        return len(self.batches)


def collate(items):
    texts, fields = zip(*items, strict=True)
    return pad_sequence(texts, batch_first=True, padding_value=PAD), torch.tensor(fields)


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 8)

    def forward(self, texts):
        blank = texts == PAD
        hidden = self.encoder(self.embed(texts), src_key_padding_mask=blank)
        return self.head(hidden.masked_fill(blank[..., None], 0).sum(1) / (~blank).sum(1, keepdim=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--typical", type=int, default=24)
    parser.add_argument("--spread", type=float, default=0.8)
    parser.add_argument("--longest", type=int, default=160)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--by-length", action="store_true")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    abstracts = Abstracts(args.count, args.typical, args.spread, args.longest)
    if args.by_length:
        order = ByLength(abstracts.texts, args.batch)
        loader = DataLoader(abstracts, batch_sampler=order, collate_fn=collate, num_workers=args.workers)
    else:
        loader = DataLoader(
            abstracts, args.batch, shuffle=True, collate_fn=collate, num_workers=args.workers, drop_last=True
        )
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        for step, (texts, fields) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(texts), fields)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
