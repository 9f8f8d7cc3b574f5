"""A GAN that learns points on eight rings."""

import itertools

import torch
from torch import nn


def points(count):
    ring = torch.randint(8, (count,)).float()
    angle = torch.rand(count) * 6.2832
    return torch.stack([ring.add(1) * angle.cos(), ring.add(1) * angle.sin()], 1) / 8


def mlp(*sizes):
    layers = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


if __name__ == "__main__":
    torch.manual_seed(0)
    forger, critic = mlp(32, 256, 256, 256, 2), mlp(2, 256, 256, 256, 1)
    forger_optimizer = torch.optim.Adam(forger.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    softplus = nn.functional.softplus
    for step in range(15_000):
        true = points(256)
        made = forger(torch.randn(256, 32))
        critic_loss = softplus(-critic(true)).mean() + softplus(critic(made.detach())).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        forger_loss = softplus(-critic(made)).mean()
        forger_optimizer.zero_grad()
        forger_loss.backward()
        forger_optimizer.step()
        if step % 200 == 0:
            print(f"step {step} critic {critic_loss.item():.3f} forger {forger_loss.item():.3f}", flush=True)
