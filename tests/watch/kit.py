"""Loops whose truth is known: every phase is a nap, and the loop itself keeps the time of each.

A case runs as a script under `stoker run`. Its naps (in forward, backward, update, dataset) and its
own stopwatch around `next()` say where the time went; it prints that as its last line, from the end
of its first step to the end of its last, which is what Stoker's shares are over.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

FORWARD, BACKWARD, UPDATE, ITEM = 0.012, 0.018, 0.008, 0.006
BATCH = 4


class Truth:
    """Seconds by phase, as the loop itself saw them."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.steps = 0
        self.samples = 0
        self._began = 0.0
        self._last: dict[str, Any] = {}

    def nap(self, phase: str, seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        self.spent[phase] += time.perf_counter() - began

    def step_done(self) -> None:
        now = time.perf_counter()
        if self.steps == 0:
            self.spent.clear()
            self._began = now
        self.steps += 1
        self._last = {**self.spent, "total": now - self._began}

    def waiting(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate as `for` would, with a stopwatch around `iter` and `next`."""
        began = time.perf_counter()
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self.spent["wait"] += time.perf_counter() - began
                return
            self.spent["wait"] += time.perf_counter() - began
            yield batch
            began = time.perf_counter()

    def tell(self) -> None:
        print("TRUTH " + json.dumps({"steps": self.steps, "seconds": self._last}), flush=True)


TRUTH = Truth()


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        TRUTH.nap("backward", BACKWARD)
        return grad


class Net(nn.Module):
    """Naps in forward and in backward."""

    def __init__(self, forward_nap: float = FORWARD) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.forward_nap = forward_nap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.forward_nap:
            TRUTH.nap("forward" if torch.is_grad_enabled() else "eval", self.forward_nap)
        return _Nap.apply(self.layer(x))  # type: ignore[no-any-return, no-untyped-call]


class SlowSGD(torch.optim.SGD):
    """Naps in its step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        TRUTH.nap("update", UPDATE)
        return super().step(closure)


class Items(Dataset[torch.Tensor]):
    """Naps for every item."""

    def __init__(self, length: int = 80, nap: float = ITEM) -> None:
        self.length = length
        self.nap = nap

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.nap)
        return torch.full((8,), float(index))


class BatchItems(Items):
    """Naps once for a batch of items."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(self.nap * 4)
        return [torch.full((8,), float(i)) for i in indices]


class Stream(IterableDataset[torch.Tensor]):
    """Naps for every item, each worker its share."""

    def __init__(self, length: int = 80, nap: float = ITEM) -> None:
        self.length = length
        self.nap = nap

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        first, every = (info.id, info.num_workers) if info is not None else (0, 1)
        for i in range(first, self.length, every):
            time.sleep(self.nap)
            yield torch.full((8,), float(i))


def loss_of(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def make() -> tuple[Net, SlowSGD]:
    net = Net()
    return net, SlowSGD(net.parameters(), lr=1e-4)


def train(net: Callable[..., torch.Tensor], optimizer: Any, batch: torch.Tensor) -> None:
    """One plain step."""
    optimizer.zero_grad()
    loss_of(net(batch)).backward()
    optimizer.step()
    TRUTH.step_done()
