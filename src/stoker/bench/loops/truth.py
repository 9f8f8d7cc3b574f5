"""GPU loops whose truth is known by construction: kernels that spin for a known time, naps on the host.

Run as a script, `truth.py CASE`, under `stoker run`. Nothing of Stoker is imported here. The device's
time in forward, backward and update is set; the host does nothing of length but stand in `next()`; so
whatever a step takes beyond the device's time, the device stood idle while the loop waited for data.
Each case prints the shares that follow from this and from its own wall clock.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 40
# The first steps load kernels and fill the allocator's pools; neither side counts them.
WARM_UP = 5
# Milliseconds on the device.
FORWARD, BACKWARD, UPDATE = 12.0, 18.0, 6.0
BUSY = FORWARD + BACKWARD + UPDATE
CASES: dict[str, Callable[[], dict[str, float]]] = {}
_cycles_per_ms = 0.0


def case(function: Callable[[], dict[str, float]]) -> Callable[[], dict[str, float]]:
    """Offer a case by its name."""
    CASES[function.__name__] = function
    return function


def calibrate() -> None:
    """How many cycles a millisecond has, once the clocks are up."""
    global _cycles_per_ms
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000_000)
    start.record()
    torch.cuda._sleep(1_000_000_000)
    end.record()
    torch.cuda.synchronize()
    _cycles_per_ms = 1_000_000_000 / start.elapsed_time(end)


def spin(milliseconds: float) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(int(milliseconds * _cycles_per_ms))


class _Spin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        spin(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        spin(BACKWARD)
        return grad


class Net(nn.Module):
    """Spins in forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Spin, and arrange to spin."""
        return _Spin.apply(self.layer(x))  # type: ignore[no-any-return, no-untyped-call]


class SpinSGD(torch.optim.SGD):
    """Spins in its step."""

    def step(self, closure: Any = None) -> Any:
        """Spin, then step."""
        spin(UPDATE)
        return super().step(closure)


class Items(Dataset[torch.Tensor]):
    """Naps on the host for every item."""

    def __init__(self, nap: float, width: int = 64) -> None:
        self.nap = nap
        self.width = width

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.nap:
            time.sleep(self.nap / 1e3)
        return torch.ones(self.width)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, on the device."""
    net = Net().cuda()
    return net, SpinSGD(net.parameters(), lr=1e-4)


class Clock:
    """The loop's own clock: how long a step takes once warm."""

    def __init__(self) -> None:
        self._steps = 0
        self._began = 0.0

    def step_done(self) -> None:
        """A step was launched. Both ends of what is timed are where the device has caught up."""
        self._steps += 1
        if self._steps == WARM_UP:
            torch.cuda.synchronize()
            self._began = time.perf_counter()

    def shares(self, **beside: float) -> dict[str, float]:
        """Shares of the step, with what else the device did, in milliseconds a step."""
        torch.cuda.synchronize()
        step = (time.perf_counter() - self._began) / (self._steps - WARM_UP) * 1e3
        busy = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE, **beside}
        idle = max(0.0, step - sum(busy.values()))
        return {"wait": idle / step, **{name: spent / step for name, spent in busy.items()}}


def train(net: nn.Module, optimizer: Any, batch: torch.Tensor) -> torch.Tensor:
    """One plain step, asynchronous all along."""
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss  # type: ignore[no-any-return]


def _loop(net: nn.Module, optimizer: Any, loader: Any, *, item: bool) -> dict[str, float]:
    clock = Clock()
    for batch in loader:
        loss = train(net, optimizer, batch.cuda(non_blocking=True))
        if item:
            loss.item()
        clock.step_done()
    return clock.shares()


@case
def late_item() -> dict[str, float]:
    """The loop reads its loss at the end of each step: the device was busy, and nothing waits for data."""
    return _loop(*make(), DataLoader(Items(0), batch_size=1), item=True)


@case
def asynchronous_loader_hidden() -> dict[str, float]:
    """The loader's 24 ms pass while the device still computes its 36: no wait."""
    return _loop(*make(), DataLoader(Items(24), batch_size=1, pin_memory=True), item=False)


@case
def asynchronous_loader_exposed() -> dict[str, float]:
    """The loader takes 60 ms and the device 36: only what it stands idle is wait."""
    return _loop(*make(), DataLoader(Items(60), batch_size=1, pin_memory=True), item=False)


@case
def loader_after_item() -> dict[str, float]:
    """With a sync before it, all of the loader's 20 ms is idle time."""
    return _loop(*make(), DataLoader(Items(20), batch_size=1), item=True)


@case
def workers() -> dict[str, float]:
    """Two workers at 120 ms a batch hand out one every 60 ms."""
    loader = DataLoader(Items(120), batch_size=1, num_workers=2, pin_memory=True)
    return _loop(*make(), loader, item=False)


@case
def side_stream_prefetch() -> dict[str, float]:
    """The next batch is drawn and copied on a side stream while the device computes."""
    net, optimizer = make()
    side = torch.cuda.Stream()
    clock = Clock()

    def prefetched(loader: Any) -> Iterator[torch.Tensor]:
        following = None
        for host in loader:
            with torch.cuda.stream(side):
                moved = host.cuda(non_blocking=True)
            if following is not None:
                yield following
            torch.cuda.current_stream().wait_stream(side)
            moved.record_stream(torch.cuda.current_stream())
            following = moved
        assert following is not None
        yield following

    for batch in prefetched(DataLoader(Items(60, 1 << 20), batch_size=1, pin_memory=True)):
        train(net, optimizer, batch[:, :64])
        clock.step_done()
    return clock.shares()


@case
def whole_step_graph() -> dict[str, float]:
    """Forward, backward and update captured in one graph: its time is told as the graph's."""
    net, optimizer = make()
    static = torch.ones(1, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train(net, optimizer, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        train(net, optimizer, static)
    clock = Clock()
    for batch in DataLoader(Items(20), batch_size=1):
        static.copy_(batch)
        graph.replay()
        torch.cuda.synchronize()
        clock.step_done()
    told = clock.shares()
    graphed = sum(told.pop(phase) for phase in ("forward", "backward", "update"))
    return {**told, "graph": graphed}


@case
def graphed_callable() -> dict[str, float]:
    """A module whose forward and backward are graphs: the phases are still told apart."""
    net, optimizer = make()
    graphed: Any = torch.cuda.make_graphed_callables(
        net, (torch.ones(1, 64, device="cuda", requires_grad=True),)
    )
    return _loop(graphed, optimizer, DataLoader(Items(20), batch_size=1), item=True)


@case
def mixed_precision() -> dict[str, float]:
    """Autocast with a gradient scaler, whose step reads from the device."""
    net, optimizer = make()
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0)
    clock = Clock()
    for batch in DataLoader(Items(20), batch_size=1):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(batch.cuda()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()
        clock.step_done()
    return clock.shares()


@torch.library.custom_op("stoker_truth::spin", mutates_args=())
def _spin_op(x: torch.Tensor) -> torch.Tensor:
    spin(FORWARD)
    return x.clone()


@_spin_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("stoker_truth::spin_back", mutates_args=())
def _spin_back_op(x: torch.Tensor) -> torch.Tensor:
    spin(BACKWARD)
    return x.clone()


@_spin_back_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_spin_op.register_autograd(lambda ctx, grad: _spin_back_op(grad))


class CompilableNet(Net):
    """The same, in operators that the compiler keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Spin, and arrange to spin."""
        return _spin_op(self.layer(x))  # type: ignore[no-any-return]


@case
def compiled() -> dict[str, float]:
    """The model through torch.compile, one graph, no breaks."""
    net = CompilableNet().cuda()
    optimizer = SpinSGD(net.parameters(), lr=1e-4)
    model: Any = torch.compile(net, fullgraph=True)
    return _loop(model, optimizer, DataLoader(Items(20), batch_size=1), item=True)


@case
def pageable_copy() -> dict[str, float]:
    """Copies of 256 MB from pageable memory, each timed by the loop between two syncs."""
    net, optimizer = make()
    host = torch.ones(1 << 26)
    batch = torch.ones(1, 64, device="cuda")
    clock = Clock()
    copies = []
    for _ in DataLoader(Items(0), batch_size=1):
        began = time.perf_counter()
        host.cuda()
        torch.cuda.synchronize()
        copies.append((time.perf_counter() - began) * 1e3)
        train(net, optimizer, batch).item()
        clock.step_done()
    return clock.shares(copy=sum(copies[WARM_UP:]) / len(copies[WARM_UP:]))


if __name__ == "__main__":
    calibrate()
    told = CASES[sys.argv[1]]()
    torch.cuda.synchronize()
    print("TRUTH " + json.dumps(told), flush=True)  # noqa: T201
