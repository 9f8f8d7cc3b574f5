"""A real stream: whether it is idle is told without waiting for it, and idle marks lie where events would."""

import time

import pytest
import torch
from resolving import resolve
from torch import nn

from stoker.watch import hooks
from stoker.watch.device import Device
from stoker.watch.notes import IDLE, WIDTH
from stoker.watch.observer import Observer

pytestmark = pytest.mark.gpu

# Some 50 to 100 ms on cards of the last ten years.
CYCLES = 100_000_000


def test_a_stream_is_idle_when_all_that_was_launched_on_it_has_ended() -> None:
    """Busy while a kernel runs, on whichever stream the model does; asking does not wait."""
    device = Device(0)
    torch.cuda.synchronize()
    seen = [device.idle()]
    torch.cuda._sleep(CYCLES)
    seen.append(device.idle())
    with torch.cuda.stream(torch.cuda.Stream()):
        device.follow()
        seen.append(device.idle())
    torch.cuda.synchronize()
    device.follow()
    seen.append(device.idle())
    assert seen == [True, False, True, True]


def test_work_behind_the_update_is_no_wait_on_a_real_device() -> None:
    """A loop that reads its loss, then launches a long kernel, then draws: the draw is not where it waits."""
    observer = Observer()
    net = nn.Linear(4, 4).cuda()
    hooks.install(observer)
    try:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = observer.loaders.of(net)
        for step in range(12):
            here = observer.begin_draw(loader)
            time.sleep(0.002)
            observer.end_draw(loader, 4, here=here)
            loss = net(torch.ones(4, 4, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            loss.item()
            if step % 2:
                torch.cuda._sleep(CYCLES)
        torch.cuda.synchronize()
        marked = sum(moment == IDLE for moment in observer.notes[2::WIDTH])
        steps = resolve(observer)
    finally:
        hooks.uninstall()
    assert marked > 0
    behind, plain = steps[4::2], steps[3::2]
    assert all(step.other > 10 * (step.wait or 0.0) for step in behind)
    assert max(step.wait or 0.0 for step in behind) < min(step.wait or 0.0 for step in plain)
