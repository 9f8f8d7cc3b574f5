"""Transmitters located from measurements in a database, as note 004 had it: a query for each sample.

Batch 128, and no workers: the session travels with the dataset and cannot be pickled. `--trip-ms` is what a
query takes on its way to a server and back; SQLite stands for that server.
"""

import argparse
import math
import sqlite3
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

SLOTS, FEATURES = 7, 7


class TriangulationDataset(Dataset):
    def __init__(self, database, trip_ms):
        self.session, self.trip_ms = sqlite3.connect(database), trip_ms
        self.ids = [row[0] for row in self.session.execute("SELECT id FROM samples WHERE split = 'train'")]
        self.area_m = self.session.execute("SELECT max(area_m) FROM datasets").fetchone()[0]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        time.sleep(self.trip_ms / 1e3)
        x, y, heard, features, iq = self.session.execute(
            "SELECT x_m, y_m, heard, features, iq FROM samples WHERE id = ?", (self.ids[index],)
        ).fetchone()
        return {
            "position": torch.tensor([x, y], dtype=torch.float32) / 1000,
            "heard": torch.frombuffer(bytearray(heard), dtype=torch.uint8),
            "features": torch.frombuffer(bytearray(features), dtype=torch.float32).view(SLOTS, FEATURES),
            "iq": torch.frombuffer(bytearray(iq), dtype=torch.int8).view(SLOTS, 2, -1),
        }


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens, present):
        batch, count, width = tokens.shape
        asked = self.ask(self.before(tokens)).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*asked, attn_mask=present)
        tokens = tokens + self.answer(seen.transpose(1, 2).reshape(batch, count, width))
        return tokens + self.think(self.between(tokens))


class Locator(nn.Module):
    """Attention over receivers to a position in km and its spread."""

    def __init__(self, area_m, width, layers, heads):
        super().__init__()
        self.register_buffer("scale", torch.tensor(area_m / 2))
        self.register_buffer("middle", torch.tensor([-85.0, 25.0, 15.0, 0.0, -1.5]))
        self.register_buffer("spread", torch.tensor([20.0, 18.0, 15.0, 150.0, 1.0]))
        self.measured = nn.Sequential(nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, width))
        self.signal = nn.Sequential(
            nn.Conv1d(2, width // 4, 9, stride=4, padding=4), nn.GELU(),
            nn.Conv1d(width // 4, width // 2, 9, stride=4, padding=4), nn.GELU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width // 2, width),
        )  # fmt: skip
        self.asking = nn.Parameter(torch.randn(width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)
        nn.init.zeros_(self.head.weight)
        wide = math.log(area_m / math.sqrt(12) / 1000)
        self.head.bias.data.copy_(torch.tensor([0.0, 0.0, wide, wide, 0.0]))

    def forward(self, features, iq, heard):
        signals = self.signal(iq.flatten(0, 1).float() / 36).view(*heard.shape, -1)
        told = torch.cat([features[..., 2:-1], features[..., -1:].clamp_min(1e-3).log()], -1)
        told = torch.cat([features[..., :2] / self.scale, (told - self.middle) / self.spread], -1)
        tokens = self.measured(told) + signals
        tokens = torch.cat([self.asking.expand(len(tokens), 1, -1), tokens], 1)
        present = functional.pad(heard.bool(), (1, 0), value=True)[:, None, None, :]
        for block in self.blocks:
            tokens = block(tokens, present)
        raw = self.head(self.norm(tokens[:, 0]))
        lower = torch.diag_embed(raw[:, 2:4].clamp(-4.6, 3.0).exp())
        return raw[:, :2] * (self.scale / 1000), lower + functional.pad(raw[:, 4, None, None], (0, 1, 1, 0))


def parse(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="an SQLite file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--trip-ms", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=1000)
    return parser.parse_args(words)


def train(args):
    torch.manual_seed(0)
    if args.device == "cpu":  # to try it on little data, which gains nothing by more
        torch.set_num_threads(1)
    signals = TriangulationDataset(args.data, args.trip_ms)
    loader = DataLoader(signals, args.batch, shuffle=True, num_workers=0, drop_last=True)
    model = Locator(signals.area_m, args.width, args.layers, args.heads).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            batch = {name: value.to(args.device) for name, value in batch.items()}
            mean, lower = model(batch["features"], batch["iq"], batch["heard"])
            away = torch.linalg.solve_triangular(lower, (batch["position"] - mean)[..., None], upper=False)
            spread = torch.diagonal(lower, dim1=-2, dim2=-1).log().sum(-1)
            loss = (spread + 0.5 * away[..., 0].square().sum(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            yield len(mean)


if __name__ == "__main__":
    for _ in train(parse()):
        pass
