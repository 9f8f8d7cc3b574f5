"""Balancing a pole: policy gradients on a simulation of sixty-four carts at once."""

import torch
from torch import nn


class Carts:
    """Cart and pole, by Euler steps; the usual constants."""

    def __init__(self, count):
        self.count = count

    def reset(self):
        self.now = (torch.rand(self.count, 4) - 0.5) * 0.1
        return self.now

    def advance(self, push):
        x, v, angle, spin = self.now.unbind(1)
        force = push.float() * 20 - 10
        sin, cos = angle.sin(), angle.cos()
        part = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        move = part - 0.05 * turn * cos / 1.1
        self.now = torch.stack([x + 0.02 * v, v + 0.02 * move, angle + 0.02 * spin, spin + 0.02 * turn], 1)
        return self.now, (self.now[:, 2].abs() < 0.2).float()


def play(policy, carts, horizon):
    seen, pushes, rewards = [], [], []
    now = carts.reset()
    with torch.no_grad():
        for _ in range(horizon):
            push = torch.distributions.Categorical(logits=policy(now)).sample()
            seen.append(now)
            pushes.append(push)
            now, reward = carts.advance(push)
            rewards.append(reward)
    upright = torch.stack(rewards).cumprod(0)
    togo = upright.flip(0).cumsum(0).flip(0)
    return torch.stack(seen), torch.stack(pushes), togo


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    carts = Carts(64)
    for game in range(5000):
        seen, pushes, togo = play(policy, carts, 40)
        advantage = (togo - togo.mean()) / (togo.std() + 1e-6)
        chances = torch.distributions.Categorical(logits=policy(seen))
        loss = -(chances.log_prob(pushes) * advantage).mean() - 0.01 * chances.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if game % 20 == 0:
            print(f"game {game}: {togo[0].mean().item():.1f} steps upright", flush=True)


if __name__ == "__main__":
    main()
