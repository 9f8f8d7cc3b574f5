"""Device time is booked on the phase that launched it, by a device that is not there."""

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from resolving import resolve
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.ward.fake_device import FakeDevice
from stoker.watch import hooks
from stoker.watch import notes as n
from stoker.watch import observer as watched
from stoker.watch.notes import IDLE
from stoker.watch.observer import Observer
from stoker.watch.phases import Step

pytestmark = pytest.mark.quiet

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


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a loop does beside training: seconds of the loader's nap, and of work for the device.

    The loader launches `inside` in its `next()`, the loop `before` the forward and `after` the update and, if
    it reads its loss by `item`, after that.
    """

    nap: float = 0.0
    item: bool = False
    beside: bool = False
    inside: float = 0.0
    before: float = 0.0
    after: float = 0.0


class Naps(Dataset[torch.Tensor]):
    def __init__(self, loop: Loop, device: FakeDevice) -> None:
        self.loop, self.device = loop, device

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.loop.nap)
        if self.loop.inside:
            self.device.launch(self.loop.inside)
        return torch.ones(4)


def observe(loop: Loop, device: FakeDevice | None = None) -> tuple[list[Step], float]:
    """Train on the fake device; the steps as the recorder would resolve them, and how long one took."""
    device = device or FakeDevice()
    observer = Observer()
    net = Net(device)
    hooks.install(observer)
    began = 0.0
    try:
        optimizer = LaunchSGD(net.parameters(), lr=0.1)
        optimizer.device = device
        observer.use_device(device)  # type: ignore[arg-type]
        for step, x in enumerate(DataLoader(Naps(loop, device), batch_size=1), 1):
            if loop.beside:  # a copy on a side stream, as a prefetcher makes
                device.beside = True
                observer.timed_copy(lambda: torch.empty(0, device="meta"), (), {})
                device.beside = False
            optimizer.zero_grad()
            if loop.before:
                device.launch(loop.before)
            net(x).sum().backward()
            optimizer.step()
            if loop.item or step == WARM_UP:
                device.synchronize()
            if step == WARM_UP:
                began = time.perf_counter()
            if loop.after:
                device.launch(loop.after)
        device.synchronize()
        each = (time.perf_counter() - began) / (step - WARM_UP)
        steps = resolve(observer)
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
    steps, each = observe(Loop(nap=nap, item=item, beside=beside))
    busy = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE}
    idle = each - sum(busy.values()) if item or nap > sum(busy.values()) else 0.0
    seen = shares(steps)
    assert {p: seen[p] for p in busy} == pytest.approx({p: s / each for p, s in busy.items()}, abs=POINTS)
    # What the loop does between draw and forward is idle time too, and not the loader's.
    assert seen["wait"] + seen["other"] == pytest.approx(idle / each, abs=POINTS)
    slept = max(0.0, nap if item else nap - sum(busy.values()))
    assert seen["wait"] >= slept / each - POINTS
    assert all(step.device is not None for step in steps[1:])


@pytest.mark.parametrize("item", [True, False])
def test_work_launched_between_update_and_draw_is_no_wait(item: bool) -> None:
    """Metrics, an average of the weights: the device is busy while the loop stands in `next()`."""
    after = 0.03
    steps, each = observe(Loop(nap=0.012, item=item, after=after))
    seen = shares(steps)
    assert seen["wait"] == pytest.approx(0, abs=POINTS)
    assert seen["other"] == pytest.approx(after / each, abs=POINTS)


def test_work_that_a_loader_launches_is_its_own() -> None:
    """It decodes on the device, say: the step waits for that too, and what was before is not moved."""
    nap, inside = 0.008, 0.02
    steps, each = observe(Loop(nap=nap, item=True, inside=inside))
    seen = shares(steps)
    assert seen["wait"] == pytest.approx((nap + inside) / each, abs=POINTS)
    assert seen["other"] == pytest.approx(0, abs=POINTS)


def test_work_launched_between_draw_and_forward_is_no_wait() -> None:
    """Augmenting on the device."""
    nap, before = 0.012, 0.02
    steps, each = observe(Loop(nap=nap, item=True, before=before))
    seen = shares(steps)
    assert seen["wait"] == pytest.approx(nap / each, abs=POINTS)
    assert seen["other"] == pytest.approx(before / each, abs=POINTS)


def test_an_idle_device_is_asked_and_gets_no_events() -> None:
    """A loop that reads its loss draws on an idle device: it records fewer events than one that does not."""
    busy, idle = FakeDevice(), FakeDevice()
    busy_steps, _ = observe(Loop(), busy)
    idle_steps, _ = observe(Loop(item=True), idle)
    assert len(busy_steps) == len(idle_steps)
    assert idle.recorded < busy.recorded - len(idle_steps)


def quiet_observer() -> tuple[Observer, FakeDevice]:
    """An observer whose device has nothing to do, after a first reading of the clocks."""
    observer, device = Observer(), FakeDevice()
    observer.use_device(device)  # type: ignore[arg-type]
    observer._gap_ns = 0  # no mark serves for another
    observer.mark_idle(time.perf_counter_ns())
    observer.notes.clear()
    return observer, device


def taken(observer: Observer) -> list[tuple[int, bool]]:
    """What was noted, and whether without an event."""
    return [(observer.notes[at], observer.notes[at + 2] == IDLE) for at in range(0, len(observer.notes), 4)]


def nothing() -> None:
    """What a hook was put around."""


def test_a_step_ends_with_an_event_however_idle_the_device() -> None:
    """So that no step's time rests on the host's clock, and phases sum to the step."""
    observer, _ = quiet_observer()
    loader = observer.loaders.of(observer)
    optimizer = object()
    observer._known.add(id(optimizer))
    here = observer.begin_draw(loader)
    observer.end_draw(loader, 1, here=here)
    observer.timed_call(nn.Identity(), nothing, (), {})
    observer.timed_backward(nothing, (), {})
    observer.before_step(optimizer, (optimizer,), {})
    observer.after_step(optimizer)
    assert [note for note in taken(observer) if note[0] not in (n.LOOP_BEGINS, n.OPTIMIZERS_KNOWN)] == [
        (n.DRAW_BEGINS, True),
        (n.DRAW_ENDS, True),
        (n.FORWARD_BEGINS, True),
        (n.PHASE_ENDS, True),
        (n.BACKWARD_BEGINS, True),
        (n.PHASE_ENDS, True),
        (n.UPDATE_BEGINS, True),
        (n.UPDATE_ENDS, False),
    ]


def test_waiting_for_a_thread_and_starting_a_loader_ask_as_a_draw_does() -> None:
    """All three are waiting for data."""
    observer, _ = quiet_observer()
    observer.unsettled = False
    observer.begin_wait()
    observer.end_wait()
    observer.end_without_batch(here=observer.begin_iter(observer.loaders.of(observer)))
    elsewhere = threading.Thread(target=observer.end_wait)
    elsewhere.start()
    elsewhere.join()
    assert taken(observer) == [
        (n.WAIT_BEGINS, True),
        (n.PHASE_ENDS, True),
        (n.ITER_BEGINS, True),
        (n.DRAW_FAILS, True),
    ]


def test_a_busy_device_gets_an_event_at_once() -> None:
    """And what follows is not asked, until the loop waits again."""
    observer, device = quiet_observer()
    loader = observer.loaders.of(observer)
    observer.unsettled = False
    here = observer.begin_draw(loader)
    device.launch(60.0)
    observer.end_draw(loader, 1, here=here)
    observer.timed_call(nn.Identity(), nothing, (), {})
    assert [without for _, without in taken(observer)] == [True, False, False, False]


def test_the_clocks_are_read_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event on the idle device, which tells how its clock stands to the host's."""
    observer, _ = quiet_observer()
    monkeypatch.setattr(watched, "_ANCHOR_NS", 0)
    observer.unsettled = False
    observer.begin_wait()
    observer.end_wait()
    assert [without for _, without in taken(observer)] == [False, False]


def test_a_device_that_captures_is_not_asked() -> None:
    """It would spoil the graph; there is no event either, and the step is told by the host's clock."""
    observer, _ = quiet_observer()
    observer.unsettled = False
    observer.capture(object())
    observer.begin_wait()
    observer.end_wait()
    assert observer.notes[2::4] == [None, None]
    observer.capture(None)
    observer.begin_wait()
    assert observer.notes[-2] == IDLE


def test_a_moment_later_an_event_serves_for_the_next_phase_but_an_idle_mark_does_not() -> None:
    """What was launched since the device was seen idle may run for long, however short the moment was."""
    observer, device = quiet_observer()
    observer._gap_ns = 3600 * 10**9
    now = observer._marked_ns = time.perf_counter_ns()
    observer._last = IDLE
    assert observer.mark_begin(now + 1) == IDLE
    device.launch(60.0)
    event = observer.mark_begin(now + 2)
    assert event != IDLE
    assert observer.mark_begin(now + 3) == event
    assert observer.mark_idle(now + 4) not in (IDLE, event)  # where a wait begins or ends, it is asked again


def test_on_another_stream_the_last_mark_says_nothing() -> None:
    """That one was idle; whether this one is was not asked."""
    observer, device = quiet_observer()
    observer.unsettled = False
    observer.begin_wait()
    observer.end_wait()
    observer._gap_ns = 3600 * 10**9
    device.beside = True
    observer.timed_call(nn.Identity(), nothing, (), {})
    assert [without for _, without in taken(observer)] == [True, True, False, False]
