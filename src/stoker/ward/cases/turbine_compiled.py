"""Wear of turbine blades with a compiled network; every batch has the same shape."""

import torch
from torch import nn


class Wear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.out = nn.Linear(256, 1)

    def forward(self, blade):
        for layer in self.layers:
            blade = blade + torch.nn.functional.gelu(layer(blade))
        return self.out(blade).squeeze(1)


def main():
    torch.manual_seed(0)
    blades = torch.randn(40_000, 256)
    wear = blades[:, :8].square().mean(1)
    model = Wear()
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12_000):
        rows = torch.randint(len(blades), (256,))
        loss = nn.functional.mse_loss(fast(blades[rows]), wear[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step} {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
