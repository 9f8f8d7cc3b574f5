"""Strength of steel from its composition, with Accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    mixture = torch.rand(16_000, 14)
    steels = TensorDataset(torch.cat([mixture, mixture.square().sum(1, keepdim=True)], 1))
    loader = DataLoader(steels, batch_size=128, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Linear(14, 1280), nn.ReLU(), nn.Linear(1280, 1280), nn.ReLU(), nn.Linear(1280, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(60):
        for (steel,) in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(steel[:, :-1]), steel[:, -1:])
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: {loss.item():.5f}", flush=True)
