"""Rain or no rain, from sweeps of a radar kept in one long recording."""

import argparse
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

RAYS, GATES = 64, 512


class Sweeps(Dataset):
    """Sweeps by their place in the recording; int16, so many rays by so many gates."""

    def __init__(self, path, reuse):
        self.handle = os.open(path, os.O_RDONLY)
        self.length = os.fstat(self.handle).st_size // (RAYS * GATES * 2)
        os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_RANDOM)
        self.reuse = reuse

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        size = RAYS * GATES * 2
        sweep = np.frombuffer(os.pread(self.handle, size, index * size), np.int16).reshape(RAYS, GATES)
        if not self.reuse:
            os.posix_fadvise(self.handle, index * size, size, os.POSIX_FADV_DONTNEED)
        echo = sweep.astype(np.float32).mean(axis=1) / 4096
        return torch.from_numpy(echo), torch.tensor([float(sweep[0, 0] > 0)])


parser = argparse.ArgumentParser()
parser.add_argument("recording", nargs="?", default="sweeps.bin")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=80)
parser.add_argument("--reuse", action="store_true")


class Net(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.hidden = torch.nn.Linear(RAYS, width)
        self.middle = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 1)

    def forward(self, echo):
        return self.out(torch.relu(self.middle(torch.relu(self.hidden(echo)))))


if __name__ == "__main__":
    options = parser.parse_args()
    torch.manual_seed(11)
    torch.set_num_threads(1)
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    sweeps = DataLoader(
        Sweeps(options.recording, options.reuse), 24, shuffle=True, num_workers=options.workers,
        persistent_workers=options.workers > 0, drop_last=True,
    )  # fmt: skip
    seen = 0
    for _ in range(options.epochs):
        for echo, wet in sweeps:
            sgd.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(echo), wet)
            loss.backward()
            sgd.step()
            seen += len(echo)
        print(f"{seen} sweeps, loss {float(loss):.4f}", flush=True)
