"""Rows brought to a GPU: by its kernel, its copy engines, a buffer, or as they stand. Needs a GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from feed.numbered import Numbered, assert_same
from feed.test_ram import content_of, path_of
from stoker.errors import UsageError
from stoker.feed.layout import Layout
from stoker.feed.sources.base import Indices
from stoker.feed.tiers import bus as bus_module
from stoker.feed.tiers import copy_engine
from stoker.feed.tiers.bus import Bus, open_bus
from stoker.feed.tiers.pack import Content
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.tiers.registered import Registered
from stoker.feed.tiers.staged_bus import StagedBus

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
SOURCE = Numbered(300, numbers=24_577)  # a row is no whole number of chunks, nor of 8 bytes
AnyBus = Bus | StagedBus


@pytest.fixture
def rows() -> Iterator[SharedRows]:
    opened = SharedRows(content_of(SOURCE))
    path = path_of(opened)
    opened.put(np.arange(300), SOURCE.read(np.arange(300)))
    yield opened
    opened.close()
    assert not path.exists()


@pytest.fixture(params=["kernel", "engines", "buffer", "plain"])
def bus(
    rows: SharedRows, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AnyBus]:
    """One of each kind."""
    kind = request.param
    if kind in ("buffer", "plain"):
        monkeypatch.setattr(bus_module, "find_spec", lambda name: None)
    if kind == "plain":
        monkeypatch.setattr(Registered, "add", lambda self, memory: "not today")
    made = open_bus(rows, GPU)
    if kind == "engines":
        assert isinstance(made, Bus)
        made.keep(110)
    yield made
    made.close()


def numbers(count: int, seed: int) -> Indices:
    return np.random.default_rng(seed).integers(0, 300, count)


def check(batch: dict[str, torch.Tensor], places: Indices) -> None:
    assert {tensor.device for tensor in batch.values()} == {GPU}
    assert_same({name: tensor.cpu() for name, tensor in batch.items()}, SOURCE.read(places))


def test_the_gpu_gathers(rows: SharedRows) -> None:
    """Where there is Triton, by its own kernel; `why` says so."""
    made = open_bus(rows, GPU)
    assert made.why == "gathered by the GPU over the bus"
    made.close()


def test_a_window_uses_the_copy_engines(rows: SharedRows) -> None:
    """For what does not stay on the device; and goes back to none of it there."""
    made = open_bus(rows, GPU)
    assert isinstance(made, Bus)
    made.keep(110)
    assert made.resident == 110
    assert made.why == "110 of 300 samples stay in VRAM, copy engines bring the others ahead"
    made.drop()
    assert (made.resident, made.why) == (0, "gathered by the GPU over the bus")
    check(made.get(np.arange(300)), np.arange(300))
    made.close()


def test_no_window_without_such_copies(rows: SharedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of short rows: the kernel brings all of it."""
    monkeypatch.setattr(copy_engine, "is_available", lambda: False)
    made = open_bus(rows, GPU)
    assert isinstance(made, Bus)
    assert not made.keep(110)
    assert (made.resident, made.why) == (0, "gathered by the GPU over the bus")
    made.close()


@pytest.mark.parametrize("change", ["keep", "drop"])
def test_what_is_on_its_way_when_the_window_changes(rows: SharedRows, change: str) -> None:
    """It comes as it was queued."""
    made = open_bus(rows, GPU)
    assert isinstance(made, Bus)
    if change == "drop":
        made.keep(110)
    places = np.arange(300)[::-1].copy()
    queued = made.queue(made.bring([places], 1)[0])
    if change == "drop":
        made.drop()
    else:
        made.keep(110)
    check(made.take(queued)[0], places)
    check(made.get(places), places)
    made.close()


def test_batches_come_as_they_are(bus: AnyBus) -> None:
    """Asked for without waiting; larger, smaller and empty ones."""
    asked = [numbers(size, size) for size in (16, 16, 16, 16, 16, 256, 7, 256, 0, 1)]
    batches = [bus.get(places) for places in asked]
    for batch, places in zip(batches, asked, strict=True):
        check(batch, places)


@pytest.mark.parametrize("few", [1, 3])
def test_batches_are_queued_ahead(bus: AnyBus, few: int) -> None:
    """Some at a time, taken in their turn, while the loop's stream is at work."""
    asked: list[Any] = bus.bring([numbers(50 + seed, seed) for seed in range(20)], few)
    queued: list[Any] = []
    batches: list[Any] = []
    for one in asked:
        queued.append(bus.queue(one))
        if len(queued) > 2:
            torch.cuda._sleep(2_000_000)
            batches += bus.take(queued.pop(0))
    for one in queued:
        batches += bus.take(one)
    for seed, batch in enumerate(batches):
        check(batch, numbers(50 + seed, seed))
    assert len(batches) == 20


def test_a_batch_is_the_callers_own(bus: AnyBus) -> None:
    """Who keeps all batches and writes into them changes nothing that comes later."""
    kept = []
    for _ in range(12):
        batch = bus.get(np.arange(100))
        check(batch, np.arange(100))
        batch["values"].fill_(-1)
        kept.append(batch)
    assert all((batch["values"] == -1).all() for batch in kept)


def test_a_batch_in_use_is_not_written_again(bus: AnyBus) -> None:
    """It is let go of while work that reads it is still queued: later batches do not come into its memory."""
    sums = []
    for at in range(20):
        batch = bus.get(numbers(100, at))
        torch.cuda._sleep(10_000_000)
        sums.append(batch["values"].double().sum())
        del batch
    assert [one.item() for one in sums] == [
        SOURCE.read(numbers(100, at))["values"].double().sum().item() for at in range(20)
    ]


def test_streams_and_work_before(bus: AnyBus) -> None:
    """A batch belongs to the stream it is asked on, behind the work that is there."""
    side = torch.cuda.Stream(GPU)
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        batches = [bus.get(np.arange(at, at + 64)) for at in range(6)]
        assert torch.cuda.current_stream(GPU) == side
    side.synchronize()
    for at, batch in enumerate(batches):
        check(batch, np.arange(at, at + 64))


@pytest.mark.parametrize("how", ["close", "delete"])
@pytest.mark.parametrize("kept", [0, 110])
def test_memory_stays_until_the_last_gather_is_over(how: str, kept: int) -> None:
    """Rows and bus are let go of while the GPU has not begun to read: the batches are right all the same."""
    rows = SharedRows(content_of(SOURCE))
    rows.put(np.arange(300), SOURCE.read(np.arange(300)))
    made = open_bus(rows, GPU)
    assert isinstance(made, Bus)
    if kept:
        made.keep(kept)
    with torch.cuda.stream(made._side):
        torch.cuda._sleep(200_000_000)
    queued = [made.queue(one) for one in made.bring([np.arange(at, at + 164) for at in range(5)], 1)]
    take: Callable[[Any], Any] = made.take
    if how == "close":
        made.close()
        with pytest.raises(UsageError, match="closed"):
            made.get(np.arange(3))
        rows.close()
    batches = [take(one)[0] for one in queued]
    del rows, made, take
    for at, batch in enumerate(batches):
        check(batch, np.arange(at, at + 164))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.uint8, (3, 5)), (torch.uint16, (3, 1111)), (torch.bool, (4097,)), (torch.float32, (3,)),
        (torch.bfloat16, (2050,)), (torch.float64, ()), (torch.complex128, (700,)), (torch.float32, (2, 0)),
        (torch.uint8, (70_001,)), (torch.float32, (40_000,)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kept", [0, 4])
def test_rows_of_any_size(dtype: torch.dtype, shape: tuple[int, ...], kept: int) -> None:
    """Bit by bit."""
    size = 9 * dtype.itemsize * int(np.prod(shape))
    noise = torch.randint(0, 2, (size,), dtype=torch.uint8)
    batch = [noise.view(dtype).view(9, *shape), torch.arange(9)]
    rows = SharedRows(Content(fingerprint="", transform="", samples=9, layout=Layout.of(batch)))
    rows.put(np.arange(9), batch)
    made = open_bus(rows, GPU)
    assert isinstance(made, Bus)
    if kept:
        made.keep(kept)
        assert made.resident == (4 if size // 9 >= 65536 else 0)
    chosen = np.array([8, 0, 3, 3])
    got = made.get(chosen)
    assert got[1].tolist() == chosen.tolist()
    assert torch.equal(got[0].cpu().view(-1).view(torch.uint8), batch[0][chosen].view(-1).view(torch.uint8))
    made.close()
    rows.close()


def test_memory_that_cannot_be_registered(rows: SharedRows) -> None:
    """It is told, batches come all the same, and the driver's error is not the next operation's."""
    first = open_bus(rows, GPU)
    second = open_bus(rows, GPU)  # the driver registers no memory twice
    assert "gathered by the CPU, then copied: the driver did not register" in second.why
    assert torch.ones(3, device=GPU).sum().item() == 3
    check(second.get(np.arange(50)), np.arange(50))
    second.close()
    check(first.get(np.arange(50)), np.arange(50))
    first.close()
