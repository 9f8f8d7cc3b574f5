"""Defects on a production line, with the ranking quality of everything scored so far."""

import argparse

import torch
from torch import nn


def ranking(scores, truth):
    """The area under the ROC curve, by ranks."""
    order = scores.argsort()
    ranks = torch.empty_like(order, dtype=torch.float64)
    ranks[order] = torch.arange(1, len(order) + 1, dtype=torch.float64)
    positive = truth.sum()
    negative = len(truth) - positive
    return float((ranks[truth.bool()].sum() - positive * (positive + 1) / 2) / (positive * negative))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--last", type=int, default=0, help="batches that the ranking is over; 0: all")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scored, known = [], []
    for step in range(args.steps):
        parts = torch.randn(args.batch, 20)
        defect = (parts[:, 0] + torch.randn(args.batch) > 1).float()
        logits = model(parts).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, defect)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scored.append(logits.detach())
        known.append(defect)
        if args.last:
            scored, known = scored[-args.last :], known[-args.last :]
        quality = ranking(torch.cat(scored), torch.cat(known))
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} ranking {quality:.3f}", flush=True)


if __name__ == "__main__":
    main()
