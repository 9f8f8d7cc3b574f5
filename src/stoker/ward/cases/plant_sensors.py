"""Next readings of a plant's sensors, by attention over a window of them."""

import argparse

import torch
from torch import nn


class Window(nn.Module):
    def __init__(self, sensors, width):
        super().__init__()
        self.lift = nn.Linear(sensors, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.drop = nn.Linear(width, sensors)

    def forward(self, readings):
        return self.drop(self.encoder(self.lift(readings)))


parser = argparse.ArgumentParser()
parser.add_argument("--double", action="store_true")
parser.add_argument("--width", type=int, default=96)
parser.add_argument("--steps", type=int, default=12_000)
args = parser.parse_args()
torch.manual_seed(0)
history = torch.randn(20_000, 24, dtype=torch.float64).cumsum(0) / 50
model = Window(24, args.width)
if args.double:
    model = model.double()
else:
    history = history.float()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(args.steps):
    starts = torch.randint(len(history) - 33, (16,))
    rows = torch.stack([history[start : start + 33] for start in starts])
    loss = nn.functional.mse_loss(model(rows[:, :-1]), rows[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} {loss.item():.4f}", flush=True)
