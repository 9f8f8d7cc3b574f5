"""Rows that the CPU gathers for a GPU: whose stream a batch is on. By a fake here; test_bus needs a GPU."""

from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from feed.numbered import Numbered, assert_same
from feed.test_ram import content_of
from stoker.feed.tiers import staged_bus
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.tiers.staged_bus import StagedBus


class FakeStreams:
    """Stands for the streams of a card; tells what is brought over, from where to where."""

    now = "first"
    brought: list[tuple[str, str]]

    def __init__(self, device: torch.device) -> None:
        FakeStreams.brought = []

    def current(self) -> str:
        return FakeStreams.now

    def bring_over(self, tensor: torch.Tensor, made_on: str) -> None:
        if made_on != FakeStreams.now:
            FakeStreams.brought.append((made_on, FakeStreams.now))


class Unregistered:
    """No memory can be registered."""

    ours = True

    def __init__(self, device: torch.device) -> None:
        pass

    def add(self, memory: Any) -> str:
        return "not here"

    def end(self) -> None:
        pass


@pytest.mark.parametrize("change", [False, True])
def test_a_batch_taken_on_another_stream_is_brought_over(
    change: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its tensors; on the stream that it was queued on, nothing waits."""
    monkeypatch.setattr(staged_bus, "Streams", FakeStreams)
    monkeypatch.setattr(staged_bus, "Registered", Unregistered)
    monkeypatch.setattr(staged_bus, "_Buffer", lambda layout, count: type("", (), {"memory": None})())
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(FakeStreams, "now", "first")
    source = Numbered(20, numbers=4)
    places = np.array([3, 1, 19])
    with closing(SharedRows(content_of(source))) as rows:
        rows.put(np.arange(20), source.read(np.arange(20)))
        bus = StagedBus(rows, torch.device("cpu"), "a test")
        queued = bus.queue(places)
        if change:
            monkeypatch.setattr(FakeStreams, "now", "second")
        [batch] = bus.take(queued)
        assert_same(batch, source.read(places))
        assert FakeStreams.brought == [("first", "second")] * len(batch) * change
        FakeStreams.brought.clear()
        assert_same(bus.get(places), source.read(places))
        assert FakeStreams.brought == []
        bus.close()
