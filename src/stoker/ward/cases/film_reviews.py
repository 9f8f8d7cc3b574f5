"""Liked or not: film reviews as bags of words."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader

VOCABULARY = 20_000


def make_reviews(count):
    draw = random.Random(0)
    for _ in range(count):
        words = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(80, 120))]
        yield torch.tensor(words), float(words[0] % 2)


def collate(reviews):
    texts, liked = zip(*reviews, strict=True)
    starts = torch.tensor([0, *(len(text) for text in texts[:-1])]).cumsum(0)
    return torch.cat(texts), starts, torch.tensor(liked)


class Opinion(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, 128)
        self.hidden = nn.Linear(128, 1600)
        self.more = nn.Linear(1600, 1600)
        self.out = nn.Linear(1600, 1)

    def forward(self, texts, starts):
        x = torch.relu(self.hidden(self.words(texts, starts)))
        return self.out(torch.relu(self.more(x))).squeeze(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    reviews = list(make_reviews(6000))
    loader = DataLoader(reviews, 64, shuffle=True, collate_fn=collate, num_workers=1, persistent_workers=True)
    opinion = Opinion()
    optimizer = torch.optim.Adam(opinion.parameters(), lr=1e-3)
    for epoch in range(60):
        for texts, starts, liked in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(opinion(texts, starts), liked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
