"""Helix or sheet along protein chains, with a compiled network."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Chains(Dataset):
    """Chains by family: those of one family are equally long."""

    def __init__(self, count, family, shortest, longest, step):
        made = torch.Generator().manual_seed(2)
        sizes = torch.randperm(longest + 1 - shortest, generator=made) + shortest
        sizes = sizes.repeat_interleave(family)[:count]
        self.sizes = (sizes + step - 1) // step * step
        self.seed = 100

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(self.seed + index)
        chain = torch.randint(21, (int(self.sizes[index]),), generator=made)
        return chain, (chain % 3)


class Fold(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(21, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 7, padding=3) for _ in range(3))
        self.out = nn.Linear(width, 3)

    def forward(self, chain):
        hidden = self.embed(chain).transpose(1, 2)
        for conv in self.convs:
            hidden = torch.relu(conv(hidden)) + hidden
        return self.out(hidden.transpose(1, 2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shortest", type=int, default=40)
    parser.add_argument("--longest", type=int, default=400)
    parser.add_argument("--step", type=int, default=1, help="lengths are whole multiples of this")
    parser.add_argument("--family", type=int, default=8)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--chains", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    chains = Chains(args.chains, args.family, args.shortest, args.longest, args.step)
    loader = DataLoader(chains, batch_size=1, num_workers=1, persistent_workers=True)
    fold = Fold()
    compiled = torch.compile(fold, backend=args.backend, dynamic=False)
    optimizer = torch.optim.Adam(fold.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for number, (chain, kind) in enumerate(loader):
            loss = nn.functional.cross_entropy(compiled(chain).flatten(0, 1), kind.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % 20 == 0:
                print(f"epoch {epoch} chain {number} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
