"""Demand for power tomorrow from the last week, by an LSTM."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Demand(Dataset):
    def __init__(self, hours, past, ahead):
        clock = torch.arange(hours) * (2 * math.pi / 24)
        self.series = (clock.sin() + 0.3 * torch.randn(hours)).unsqueeze(1)
        self.past, self.ahead = past, ahead

    def __len__(self):
        return len(self.series) - self.past - self.ahead

    def __getitem__(self, start):
        cut = start + self.past
        return self.series[start:cut], self.series[cut : cut + self.ahead, 0]


class Forecaster(nn.Module):
    def __init__(self, ahead, width=128):
        super().__init__()
        self.lstm = nn.LSTM(1, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, ahead)

    def forward(self, past):
        output, _ = self.lstm(past)
        return self.out(output[:, -1])


if __name__ == "__main__":
    torch.manual_seed(3)
    torch.set_num_threads(1)
    loader = DataLoader(
        Demand(12_000, 48, 24), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True
    )
    model = Forecaster(24)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(40):
        for past, ahead in loader:
            loss = nn.functional.l1_loss(model(past), ahead)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} mae {loss.item():.4f}", flush=True)
