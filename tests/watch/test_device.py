"""Device time is booked on the phase that launched it, by a device that is not there."""

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.ward.fake_device import FakeDevice
from stoker.watch import hooks
from stoker.watch.observer import Observer
from stoker.watch.part import ready, step_of
from stoker.watch.phases import Step

FORWARD, BACKWARD, UPDATE = 0.012, 0.018, 0.006
POINTS = 0.03
WARM_UP = 3


class _Launch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: FakeDevice) -> torch.Tensor:
        ctx.device = device
        device.launch(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.device.launch(BACKWARD)
        return grad, None


class Net(nn.Module):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Launch.apply(self.layer(x), self.device)  # type: ignore[no-any-return, no-untyped-call]


class LaunchSGD(torch.optim.SGD):
    device: FakeDevice

    def step(self, closure: Any = None) -> Any:
        self.device.launch(UPDATE)
        return super().step(closure)


class Naps(Dataset[torch.Tensor]):
    def __init__(self, nap: float) -> None:
        self.nap = nap

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.nap)
        return torch.ones(4)


def observe(nap: float, *, item: bool, beside: bool = False) -> tuple[list[Step], float]:
    """Train on the fake device; the steps as the recorder would resolve them, and how long one took."""
    device = FakeDevice()
    observer = Observer()
    reader = observer.reader
    net = Net(device)
    hooks.install(observer)
    began = 0.0
    try:
        optimizer = LaunchSGD(net.parameters(), lr=0.1)
        optimizer.device = device
        observer.use_device(device)  # type: ignore[arg-type]
        for step, x in enumerate(DataLoader(Naps(nap), batch_size=1), 1):
            if beside:  # a copy on a side stream, as a prefetcher makes
                device.beside = True
                observer.timed_copy(lambda: torch.empty(0, device="meta"), (), {})
                device.beside = False
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            if item or step == WARM_UP:
                device.synchronize()
            if step == WARM_UP:
                began = time.perf_counter()
        device.synchronize()
        each = (time.perf_counter() - began) / (step - WARM_UP)
        reader.read()
        assert all(ready(parts) for parts in reader.done)
        steps = [step_of(p, n, loaders_seen=True, device=device) for n, p in enumerate(reader.done)]  # type: ignore[arg-type]
    finally:
        hooks.uninstall()
    return steps, each


def shares(steps: list[Step]) -> dict[str, float]:
    kept = steps[WARM_UP:]
    total = sum(step.seconds for step in kept)
    return {
        p: sum(getattr(s, p) or 0 for s in kept) / total
        for p in ("wait", "forward", "backward", "update", "other")
    }


@pytest.mark.parametrize(
    ("nap", "item", "beside"),
    [
        (0.0, True, False),
        (0.02, True, False),
        (0.024, False, False),
        (0.06, False, False),
        (0.06, False, True),
    ],
)
def test_the_wait_is_the_devices_idle_time(nap: float, item: bool, beside: bool) -> None:
    """With a sync the whole nap is idle; without one only what is left of it when the device has run dry."""
    steps, each = observe(nap, item=item, beside=beside)
    busy = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE}
    idle = each - sum(busy.values()) if item or nap > sum(busy.values()) else 0.0
    seen = shares(steps)
    assert {p: seen[p] for p in busy} == pytest.approx({p: s / each for p, s in busy.items()}, abs=POINTS)
    # What the loop does between draw and forward is idle time too, and not the loader's.
    assert seen["wait"] + seen["other"] == pytest.approx(idle / each, abs=POINTS)
    slept = max(0.0, nap if item else nap - sum(busy.values()))
    assert seen["wait"] >= slept / each - POINTS
    assert all(step.device is not None for step in steps[1:])
