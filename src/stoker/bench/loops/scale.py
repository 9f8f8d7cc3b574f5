"""A training of several ranks, as people write them: samples over HTTP or from files, DDP over gloo.

It goes on until its time is up, which all ranks are told of every 16 steps. It imports nothing of Stoker.
"""

import argparse
import http.client
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIDE = 128
CLASSES = 10
TOLD_EVERY = 16


class Far(Dataset[tuple[torch.Tensor, int]]):
    """Objects by their addresses, a request each."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.link: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        url = urlsplit(self.urls[index])
        if self.link is None:  # a process of its own has its own
            self.link = http.client.HTTPConnection(url.hostname or "", url.port)
        self.link.request("GET", f"{url.path}?{url.query}")
        answer = self.link.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError(f"{url.path}: {answer.status} {body[:200]!r}")
        return as_sample(body, index)


class Near(Dataset[tuple[torch.Tensor, int]]):
    """Files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return as_sample(self.paths[index].read_bytes(), index)


def as_sample(body: bytes, index: int) -> tuple[torch.Tensor, int]:
    """A photo and its class."""
    photo = np.frombuffer(body, np.uint8).reshape(3, SIDE, SIDE)
    return torch.from_numpy(photo / np.float32(255)), index % CLASSES


def build(width: int, wide: int) -> nn.Module:
    """So much to compute, and gradients of so much."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, CLASSES),
    )  # fmt: skip


def main() -> None:
    """Train until the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--urls", type=Path)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--wide", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    samples = Near(args.files) if args.urls is None else Far(json.loads(args.urls.read_text()))
    sampler: DistributedSampler[object] = DistributedSampler(samples)
    loader = DataLoader(
        samples, batch_size=args.batch, sampler=sampler, num_workers=args.workers, drop_last=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = DistributedDataParallel(build(args.width, args.wide))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    until, step, epoch, over = None, 0, 0, torch.zeros(1)
    while not over.item():
        sampler.set_epoch(epoch)
        for photos, classes in loader:
            loss = nn.functional.cross_entropy(model(photos), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            until = until or time.monotonic() + args.seconds
            step += 1
            if step % TOLD_EVERY == 0:
                over.fill_(float(time.monotonic() > until))
                dist.all_reduce(over)
                if over.item():
                    break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
