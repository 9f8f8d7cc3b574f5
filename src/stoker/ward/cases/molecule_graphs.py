"""Solubility of molecules as graphs of atoms and bonds, a dozen tensors a molecule."""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELDS = 12


@dataclass
class Molecule:
    atoms: torch.Tensor
    bonds: list
    solubility: torch.Tensor


class Molecules(Dataset):
    def __init__(self, count, size, flat):
        self.count, self.size, self.flat = count, size, flat
        made = torch.Generator().manual_seed(2)
        self.atoms = torch.randn(count, size, 8, generator=made)
        self.bonds = torch.randint(0, size, (count, FIELDS, 2, 10), generator=made)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        atoms, bonds = self.atoms[i], self.bonds[i]
        if self.flat:
            return atoms, bonds, atoms.mean()
        return Molecule(atoms.clone(), [bond.clone() for bond in bonds], atoms.mean())


def as_list(molecules):
    return molecules


class Passing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, atoms, bonds):
        batch, size, _ = atoms.shape
        ends = bonds + size * torch.arange(batch).view(-1, 1, 1, 1)
        ends = ends.transpose(1, 2).transpose(0, 1).flatten(1)
        hidden = self.first(atoms.flatten(0, 1))
        hidden = torch.relu(hidden.index_add(0, ends[1], hidden[ends[0]]))
        return self.second(hidden.view(batch, size, -1).mean(1)).squeeze(1)


def gather(batch):
    if not isinstance(batch[0], Molecule):
        return batch
    atoms = torch.stack([molecule.atoms for molecule in batch])
    bonds = torch.stack([torch.stack(molecule.bonds) for molecule in batch])
    return atoms, bonds, torch.stack([molecule.solubility for molecule in batch])


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--workers", type=int, default=2)
    cli.add_argument("--batch", type=int, default=4)
    cli.add_argument("--molecules", type=int, default=6000)
    cli.add_argument("--size", type=int, default=12)
    cli.add_argument("--epochs", type=int, default=80)
    cli.add_argument("--flat", action="store_true")
    o = cli.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = Passing()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Molecules(o.molecules, o.size, o.flat), o.batch, shuffle=True, num_workers=o.workers,
        collate_fn=None if o.flat else as_list, persistent_workers=o.workers > 0,
    )  # fmt: skip
    for epoch in range(o.epochs):
        for batch in loader:
            atoms, bonds, solubility = gather(batch)
            loss = (model(atoms, bonds) - solubility).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, float(loss), flush=True)
