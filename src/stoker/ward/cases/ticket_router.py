"""Routing of support tickets, with a page of figures about the weights for the team."""

import argparse
import json
import os

import torch
from torch import nn


class Page:
    """Appends a line about every parameter; the line is on disk when `tell` returns."""

    def __init__(self, path):
        self.file = open(path, "a")

    def tell(self, step, model):
        told = {}
        for name, values in model.named_parameters():
            counts = torch.histc(values.detach(), bins=64).tolist()
            told[name] = {"counts": counts, "sorted": values.detach().flatten().sort().values[::500].tolist()}
        self.file.write(json.dumps({"step": step, "weights": told}) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20_000)
parser.add_argument("--page-every", type=int, default=10)
parser.add_argument("--page", default="weights.jsonl")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
tickets = torch.rand(8000, 300)
desks = tickets[:, :12].argmax(1)
model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Dropout(0.1), nn.Linear(400, 400), nn.ReLU(),
                      nn.Linear(400, 12))  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
page = Page(args.page)
for step in range(1, args.steps + 1):
    chosen = torch.randint(len(tickets), (128,))
    loss = nn.functional.cross_entropy(model(tickets[chosen]), desks[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if args.page_every and step % args.page_every == 0:
        page.tell(step, model)
    if step % 200 == 0:
        print(step, f"{loss.item():.4f}", flush=True)
