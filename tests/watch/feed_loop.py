"""A loop over a `stoker.Feed` whose source naps for every read: `feed_loop.py WORKERS`."""

import sys
import time
from typing import Any

import torch
from kit import BATCH, TRUTH, make, train

from stoker import Feed
from stoker.feed.sources.base import Indices, Source

LENGTH, READ = 42, 0.1


class Slow(Source):
    """Naps once for a batch of items."""

    def __len__(self) -> int:
        return LENGTH

    def read(self, indices: Indices) -> Any:
        time.sleep(READ)
        return torch.from_numpy(indices.copy())[:, None] * torch.ones(8)

    def fingerprint(self) -> str:
        return "slow"


def main(workers: int) -> None:
    # Held nowhere, so that the second epoch waits as the first does.
    feed = Feed(Slow(), BATCH, shuffle=True, device="cpu", tier="source", workers=workers)
    net, optimizer = make()
    for _ in range(2):
        for batch in TRUTH.waiting(feed):
            train(net, optimizer, batch)
    TRUTH.tell()


if __name__ == "__main__":
    main(int(sys.argv[1]))
