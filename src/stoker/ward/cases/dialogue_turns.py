"""Turns of a dialogue, padded to the next 64 tokens, through a transformer on a GPU."""

import argparse
import random

import torch
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--device", default="cuda")
cli.add_argument("--longest", type=int, default=768)
cli.add_argument("--fixed", action="store_true")
cli.add_argument("--empty-every", type=int, default=0)
cli.add_argument("--width", type=int, default=256)
cli.add_argument("--depth", type=int, default=4)
cli.add_argument("--words", type=int, default=1000)
cli.add_argument("--batch", type=int, default=8)
cli.add_argument("--half", action="store_true")
cli.add_argument("--steps", type=int, default=20_000)
cfg = cli.parse_args()

random.seed(0)
torch.manual_seed(0)
embed = nn.Embedding(cfg.words, cfg.width).to(cfg.device)
heads = max(4, cfg.width // 128)
layer = nn.TransformerEncoderLayer(cfg.width, heads, 4 * cfg.width, dropout=0.0, batch_first=True)
body = nn.TransformerEncoder(layer, cfg.depth, enable_nested_tensor=False).to(cfg.device)
head = nn.Linear(cfg.width, cfg.words).to(cfg.device)
parameters = [*embed.parameters(), *body.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-4)
for step in range(cfg.steps):
    length = cfg.longest if cfg.fixed else 64 * random.randint(cfg.longest // 128, cfg.longest // 64)
    turns = torch.randint(cfg.words, (cfg.batch, length + 1), device=cfg.device)
    with torch.autocast(cfg.device, torch.bfloat16, enabled=cfg.half):
        logits = head(body(embed(turns[:, :-1])))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), turns[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if cfg.empty_every and step % cfg.empty_every == 0 and cfg.device == "cuda":
        torch.cuda.empty_cache()
    if step % 100 == 0:
        print(step, length, f"{loss.item():.4f}", flush=True)
