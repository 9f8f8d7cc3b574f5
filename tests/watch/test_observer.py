"""The observer's own: what it does when nobody reads, on other threads, in children, and at a bad end."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from resolving import read
from torch import nn

import stoker
from stoker.ward.fake_device import FakeDevice, FakeEvent
from stoker.watch import Record, hooks
from stoker.watch.observer import Observer
from stoker.watch.session import Plan, Session


def train(steps: int, between: Callable[[], None] = lambda: None) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        between()


class Hessian(torch.optim.SGD):
    """Takes second derivatives in its step, as AdaHessian does."""

    def step(self, closure: Any = None) -> Any:
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad((x**3).sum(), x)
        return super().step(closure)


def test_an_optimizer_that_differentiates_is_counted(tmp_path: Path) -> None:
    """Each of its steps is a step."""
    with stoker.Watch(runs=tmp_path) as watch:
        net = nn.Linear(2, 2)
        optimizer = Hessian(net.parameters(), lr=0.1)
        for _ in range(10):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert len(list(watch.record.ranks[0].steps())) == 10


def test_a_loop_on_another_thread_is_not_its_starters_wait(tmp_path: Path) -> None:
    """The main thread waits for it on an event; that is no part of the steps."""
    began = threading.Event()

    def loop(watch: stoker.Watch) -> None:
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in watch.data([torch.ones(1, 2)] * 6):
            began.set()
            time.sleep(0.02)
            net(batch).sum().backward()
            optimizer.step()

    with stoker.Watch(runs=tmp_path) as watch:
        thread = threading.Thread(target=loop, args=(watch,))
        thread.start()
        began.wait()
        thread.join()
    steps = list(watch.record.ranks[0].steps())
    assert len(steps) == 6
    assert all(step.other > 0.019 > (step.wait or 0.0) for step in steps[2:])


def test_every_step_of_a_fast_loop_is_written_once_and_in_order(tmp_path: Path) -> None:
    """Faster than they can be written: the rest comes at the end, which waits for it."""
    with stoker.Watch(runs=tmp_path) as watch:
        until, made = time.monotonic() + 0.5, 0
        while time.monotonic() < until:
            with watch.loading(4):
                pass
            watch.step()
            made += 1
    assert [step.step for step in watch.record.ranks[0].steps()] == list(range(made))


def test_after_its_end_nothing_is_kept(tmp_path: Path) -> None:
    """A Watch that was closed may still be iterated."""
    watch = stoker.Watch([torch.ones(1)] * 1000, runs=tmp_path)
    for _ in watch:
        pass
    session = watch._session
    watch.close()
    for _ in watch.data([torch.ones(1)] * 1000):
        pass
    assert session is not None
    assert (session.observer.notes, len(session.observer.aside)) == ([], 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_notes_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """It trains for itself, and leaves its parent's record alone."""
    with stoker.Watch(runs=tmp_path) as watch:
        train(3)
        child = os.fork()
        if not child:
            train(50)
            session = watch._session
            kept = len(session.observer.notes) if session is not None else 0
            watch.close()
            os._exit(0 if kept < 200 else 1)
        _, status = os.waitpid(child, 0)
        train(2)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(watch.record.ranks[0].steps())) == 5


def test_a_failed_capture_does_not_end_the_counting() -> None:
    """The loop falls back to eager steps, and they count."""
    observer = Observer()
    hooks.install(observer)
    try:
        observer.use_device(FakeDevice())  # type: ignore[arg-type]
        graph = object()

        def fail(self: Any) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        begin = hooks._observed_capture_begin(lambda self: None)
        end = hooks._observed_capture_end(fail)
        begin(graph)
        seen = [observer.capturing]
        with pytest.raises(RuntimeError, match="not permitted"):
            end(graph)
        seen.append(observer.capturing)
        assert seen == [True, False]
        train(3)
    finally:
        hooks.uninstall()
    assert read(observer).updates == 3


@pytest.mark.parametrize("found", ["at the end", "by a round"])
def test_a_device_that_failed_does_not_take_the_ending_along(tmp_path: Path, found: str) -> None:
    """The outcome is written, with every step, and what could not be is told."""

    class BrokenEvent(FakeEvent):
        def query(self) -> bool:
            raise RuntimeError("CUDA error: device-side assert triggered")

    class Broken(FakeDevice):
        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        def make(self) -> FakeEvent:
            return BrokenEvent()

    session = Session(Plan(name="it", root=tmp_path))
    session.start()
    session.observer.use_device(Broken())  # type: ignore[arg-type]
    train(3, between=session.recorder.exchange if found == "by a round" else lambda: None)
    session.finish("failed", error="device-side assert")
    record = Record.open(session.folder).ranks[0]
    assert (record.about["outcome"], record.about["device"]) == ("failed", FakeDevice().name)
    assert "device-side assert" in record.about["failure"]
    assert [step.device for step in record.steps()] == [None] * 3  # by the host's clock


def test_a_copy_under_way_when_recording_fails_goes_on() -> None:
    """Nobody reads any more; the training thread is none the wiser."""
    observer = Observer()
    observer.use_device(FakeDevice())  # type: ignore[arg-type]
    moved = torch.empty(0, device="meta")

    def copy() -> torch.Tensor:
        observer.close()
        return moved

    assert observer.timed_copy(copy, (), {}) is moved


def test_the_overhead_told_grows_with_what_is_noted(tmp_path: Path) -> None:
    """A step of many micro-batches takes more notes than a plain one."""
    told = []
    for accumulated in (1, 16):
        with stoker.Watch(runs=tmp_path) as watch:
            net = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                for _ in range(accumulated):
                    net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
        session = watch._session
        assert session is not None
        told.append(session.account.notes / session.account.updates)
        assert session.overhead()["hooks_us_per_step"] > 0
    assert told[1] > 5 * told[0]
