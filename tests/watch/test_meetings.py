"""Collectives as they are noted: where a rank has come, and where it is let go. One process, one rank."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from resolving import read
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from stoker.ward.fake_device import FakeDevice
from stoker.watch import Meeting, hooks
from stoker.watch import notes as n
from stoker.watch.clock import DeviceClock
from stoker.watch.meetings import Meetings
from stoker.watch.observer import Observer
from stoker.watch.part import meetings_of, step_of
from stoker.watch.reader import Reader

MS = 1_000_000
NAP = 0.05


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One rank, taken for one of several."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(Meetings, "is_of_all", lambda *_: True)
    yield
    dist.destroy_process_group()


@pytest.fixture
def observer() -> Iterator[Observer]:
    observer = Observer()
    hooks.install(observer)
    yield observer
    hooks.uninstall()


def met(observer: Observer) -> list[Meeting]:
    """What was noted, by step."""
    found, clock = read(observer), DeviceClock()
    return [
        one
        for number, parts in enumerate(found.done)
        for one in meetings_of(parts, number, device=found.device, clock=clock)
    ]


def napping(
    state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # by which torch knows a hook
) -> torch.futures.Future[torch.Tensor]:
    """A sum that comes a while after it was asked for, as over a link."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Timer(NAP, lambda: future.set_result(bucket.buffer())).start()
    return future


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@pytest.mark.usefixtures("group")
def test_a_backward_pass_is_met_between_the_last_gradient_and_the_sums(observer: Observer) -> None:
    """Waiting for them is in the meeting, and what was computed before is not; no hook stays behind."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    model.register_comm_hook(None, napping)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer)
    found = met(observer)
    assert [(one.step, one.kind, one.phase, one.bytes) for one in found] == [
        (step, "ddp", "backward", 4 * (4 * 2 + 2)) for step in range(3)
    ]
    assert all(one.stood >= 0.8 * NAP for one in found)


@pytest.mark.usefixtures("group")
def test_a_pass_that_brings_nothing_together_is_no_meeting(observer: Observer) -> None:
    """Within `no_sync`, by `autograd.grad`, of no graph; one with a pass inside it is counted, not timed."""
    inner = nn.Linear(4, 4)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.ones(2, 4)).sum().backward()
    torch.autograd.grad(inner(torch.ones(1, 4)).sum(), list(inner.parameters()))
    optimizer.step()
    assert met(observer) == []
    x = torch.ones(2, 4, requires_grad=True)
    checkpoint(torch.sin, model(x), use_reentrant=True).sum().backward()
    optimizer.step()
    assert met(observer) == []
    assert observer.meetings.untimed == 1
    train(model, optimizer)
    assert [one.kind for one in met(observer)] == ["ddp"]


@pytest.mark.usefixtures("group")
def test_a_pass_that_raises_leaves_nothing_open(observer: Observer) -> None:
    """The next one is met as if it had not been."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(torch.ones(2, 4))
    out.register_hook(_fail)
    with pytest.raises(ValueError, match="as asked"):
        out.sum().backward()
    optimizer.step()
    train(model, optimizer)
    assert [one.step for one in met(observer)] == [1]


def _fail(_: object) -> None:
    raise ValueError("as asked")


@pytest.mark.usefixtures("group")
def test_functions_are_met_where_they_wait(observer: Observer) -> None:
    """With their bytes; one that only begins is counted. Afterwards they are torch's own again."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    dist.all_reduce(torch.ones(3))
    dist.all_gather_object([None], {"a": 1})
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    work.wait()
    other = threading.Thread(target=dist.barrier)
    other.start()
    other.join()
    train(model, optimizer)
    found = [(one.step, one.kind, one.phase) for one in met(observer)]
    assert found == [
        (0, "buffers", "forward"), (0, "ddp", "backward"), (1, "all_reduce", "other"),
        (1, "all_gather_object", "other"), (1, "buffers", "forward"), (1, "ddp", "backward"),
    ]  # fmt: skip
    assert [one.bytes for one in met(observer)][2:4] == [12, None]
    assert observer.meetings.untimed == 1
    timed = dist.all_reduce
    hooks.uninstall()
    assert dist.all_reduce is not timed
    assert dist.all_reduce is dist.distributed_c10d.all_reduce


def test_one_process_by_itself_meets_nobody(observer: Observer) -> None:
    """A group of one is no world of several."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(4, 2))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        dist.barrier()
    finally:
        dist.destroy_process_group()
    assert met(observer) == []


def test_garbage_is_told_with_the_step_in_which_it_was_collected(observer: Observer) -> None:
    """As long as the collector says; rounds too short to be worth a note are none."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [{"a": [number]} for number in range(200_000)]
    train(model, optimizer)
    began = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - began
    train(model, optimizer)
    assert len(kept) == 200_000
    collected = [sum(part.gc for part in parts) / 1e9 for parts in read(observer).done]
    assert 0.5 * took < collected[1] <= took + 0.05
    hooks.uninstall()
    assert not [one for one in gc.callbacks if "Garbage" in repr(one)]


# --- by a device's clock ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("busy", [False, True])
def test_a_device_has_come_when_it_has_nothing_left_to_compute(observer: Observer, busy: bool) -> None:
    """Where it computes for longer than sums take, nothing is waited for, however long the host stands."""
    device = FakeDevice()
    model = DistributedDataParallel(nn.Linear(4, 2))
    model.register_comm_hook(None, napping)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observer.use_device(device)  # type: ignore[arg-type]
    for _ in range(2):
        loss = model(torch.ones(2, 4)).sum()
        device.launch(4 * NAP if busy else 0.0)
        loss.backward()
        optimizer.step()
    device.synchronize()
    found, clock = read(observer), DeviceClock()
    clock.pass_marks(observer.events.take_marks(len(observer.events.marks)))
    for number, parts in enumerate(found.done):
        (one,) = meetings_of(parts, number, device=found.device, clock=clock)
        step_of(parts, number, loaders_seen=False, device=found.device, clock=clock)
        assert (one.stood < 0.5 * NAP) is busy


def test_on_a_device_both_ends_are_its_own() -> None:
    """The host is past the collective at once; the device comes 30 ms later, and is in it for 20."""
    reader, clock = Reader(), DeviceClock()
    notes: list[Any] = [
        n.LOOP_BEGINS, 0, None, False,
        n.DEVICE_FOUND, 0, 0, 0,
        n.BACKWARD_BEGINS, 1 * MS, 1, None,
        n.ARRIVED, 2 * MS, 2, n.packed(n.DDP, 8),
        n.RELEASED, 3 * MS, 3, True,
        n.PHASE_ENDS, 3 * MS, 3, n.BACKWARD_BEGINS,
        n.UPDATE_BEGINS, 3 * MS, 3, None,
        n.ARRIVED, 3 * MS, None, n.packed(n.DDP, 8),
        n.RELEASED, 3 * MS, None, True,
        n.UPDATE_ENDS, 4 * MS, 4, 1,
    ]  # fmt: skip
    reader.read(notes, unix_less_clock=1000.0)
    clock.pass_marks([0.0, 2.0, 30.0, 20.0, 1.0])
    (parts,) = reader.done
    found = list(meetings_of(parts, 0, device=0, clock=clock))
    assert [one.stood for one in found] == [pytest.approx(0.02)]
    assert found[0].arrived == pytest.approx(1000.002)
    assert found[0].bytes == 8
