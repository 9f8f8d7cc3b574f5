"""A small training whose samples take 5 ms each to read, one after the other: more workers help."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset[torch.Tensor]):
    """Samples that are waited for."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((8,), float(at))


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(10):
        for batch in DataLoader(Slow(), batch_size=4, num_workers=1):
            optimizer.zero_grad()
            model(batch / 4000).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
