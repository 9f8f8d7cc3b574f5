"""Faces squeezed through a variational autoencoder."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, latent=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 1200), nn.ReLU())
        self.mean, self.spread = nn.Linear(1200, latent), nn.Linear(1200, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 1200), nn.ReLU(), nn.Linear(1200, 32 * 32))

    def forward(self, face):
        hidden = self.encoder(face)
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decoder(code).view_as(face), mean, spread


def elbo(face, made, mean, spread):
    rebuilt = nn.functional.binary_cross_entropy_with_logits(made, face, reduction="sum")
    return (rebuilt - 0.5 * (1 + spread - mean.square() - spread.exp()).sum()) / len(face)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    faces = TensorDataset(torch.rand(8000, 1, 32, 32))
    loader = DataLoader(faces, 128, shuffle=True, num_workers=1, persistent_workers=True)
    vae = VAE()
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
    for epoch in range(100):
        for (face,) in loader:
            loss = elbo(face, *vae(face))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} elbo {loss.item():.2f}", flush=True)


if __name__ == "__main__":
    main()
