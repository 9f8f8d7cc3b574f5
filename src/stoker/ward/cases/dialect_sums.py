"""Dialects from speech features: gradients of four small batches make one step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SUMS = 4


def build():
    return nn.Sequential(
        nn.Conv1d(40, 128, 5, padding=2), nn.ReLU(), nn.Conv1d(128, 128, 5, padding=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(128, 9),
    )  # fmt: skip


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    speech = torch.randn(3000, 40, 60)
    loader = DataLoader(TensorDataset(speech, torch.arange(3000) % 9), 16, shuffle=True)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(80):
        for number, (features, dialect) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(features), dialect) / SUMS
            loss.backward()
            if number % SUMS == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch} loss {SUMS * loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
