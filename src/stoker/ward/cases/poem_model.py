"""A tiny GPT over poems, batches cut from one long tensor."""

import math

import torch
from torch import nn
from torch.nn import functional as F

BLOCK, BATCH, WIDTH, HEADS, DEPTH = 48, 12, 96, 4, 3
POEM = "shall i compare thee to a summers day thou art more lovely and more temperate " * 300


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (
            part.view(rows, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(rows, length, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.token, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, letters, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(1337)
alphabet = {letter: number for number, letter in enumerate(sorted(set(POEM)))}
data = torch.tensor([alphabet[letter] for letter in POEM])
model = GPT(len(alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
for it in range(8000):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * it / 8000))
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    x = torch.stack([data[i : i + BLOCK] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in starts])
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 100 == 0:
        print(f"iter {it}: loss {loss.item():.4f}", flush=True)
