"""Rows brought to a GPU over the bus: by its own kernel, by a buffer, or as they stand. Needs a GPU."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from feed.numbered import Numbered, assert_same
from feed.test_ram import content_of, path_of
from stoker.errors import UsageError
from stoker.feed.layout import Layout
from stoker.feed.tiers import bus as bus_module
from stoker.feed.tiers.bus import Bus
from stoker.feed.tiers.pack import Content
from stoker.feed.tiers.ram import SharedRows

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
SOURCE = Numbered(300, numbers=24_577)  # a row is no whole number of chunks, nor of 8 bytes


@pytest.fixture
def rows() -> Iterator[SharedRows]:
    opened = SharedRows(content_of(SOURCE))
    path = path_of(opened)
    opened.put(np.arange(300), SOURCE.read(np.arange(300)))
    yield opened
    opened.close()
    assert not path.exists()


@pytest.fixture(params=["triton", "buffer", "plain"])
def bus(rows: SharedRows, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    """One of each kind."""
    if request.param != "triton":
        monkeypatch.setattr(bus_module, "find_spec", lambda name: None)
    if request.param == "plain":
        monkeypatch.setattr(Bus, "_register", lambda self, memory: "not today")
    made = Bus(rows, GPU)
    yield made
    made.close()


def check(batch: dict[str, torch.Tensor], numbers: torch.Tensor) -> None:
    assert {tensor.device for tensor in batch.values()} == {GPU}
    assert_same({name: tensor.cpu() for name, tensor in batch.items()}, SOURCE.read(numbers.cpu().numpy()))


def test_the_gpu_gathers(rows: SharedRows) -> None:
    """Where there is Triton, by its own kernel; `why` says so."""
    made = Bus(rows, GPU)
    assert made.why == "gathered by the GPU over the bus"
    made.close()


def test_batches_come_as_they_are(bus: Bus) -> None:
    """Asked for without waiting; larger, smaller and empty ones; by indices of either side."""
    asked = [torch.randint(0, 300, (size,)) for size in (16, 16, 16, 16, 16, 256, 7, 256, 0, 1)]
    batches = [bus.get(numbers.to(GPU) if at % 2 else numbers) for at, numbers in enumerate(asked)]
    for batch, numbers in zip(batches, asked, strict=True):
        check(batch, numbers)


def test_a_batch_is_the_callers_own(bus: Bus) -> None:
    """Who keeps all batches and writes into them changes nothing that comes later."""
    kept = []
    for _ in range(8):
        batch = bus.get(torch.arange(100))
        check(batch, torch.arange(100))
        batch["values"].fill_(-1)
        kept.append(batch)
    assert all((batch["values"] == -1).all() for batch in kept)


def test_streams_and_work_before(bus: Bus) -> None:
    """A gather is queued on the stream it is asked on, behind the work that is there."""
    side = torch.cuda.Stream(GPU)
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        batches = [bus.get(torch.arange(at, at + 64, device=GPU)) for at in range(6)]
    side.synchronize()
    for at, batch in enumerate(batches):
        check(batch, torch.arange(at, at + 64))


@pytest.mark.parametrize("how", ["close", "delete"])
def test_memory_stays_until_the_last_gather_is_over(how: str) -> None:
    """Rows and bus are let go of while the GPU has not begun to read: the batches are right all the same."""
    rows = SharedRows(content_of(SOURCE))
    rows.put(np.arange(300), SOURCE.read(np.arange(300)))
    made = Bus(rows, GPU)
    torch.cuda._sleep(200_000_000)
    batches = [made.get(torch.arange(at, at + 64)) for at in range(5)]
    if how == "close":
        rows.close()
        made.close()
        with pytest.raises(UsageError, match="closed"):
            made.get(torch.arange(3))
    del rows, made
    for at, batch in enumerate(batches):
        check(batch, torch.arange(at, at + 64))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.uint8, (3, 5)), (torch.uint16, (3, 1111)), (torch.bool, (4097,)), (torch.float32, (3,)),
        (torch.bfloat16, (2050,)), (torch.float64, ()), (torch.complex128, (700,)), (torch.float32, (2, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_any_size(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Bit by bit."""
    size = 9 * dtype.itemsize * int(np.prod(shape))
    noise = torch.randint(0, 2, (size,), dtype=torch.uint8)
    batch = [noise.view(dtype).view(9, *shape), torch.arange(9)]
    rows = SharedRows(Content(fingerprint="", transform="", samples=9, layout=Layout.of(batch)))
    rows.put(np.arange(9), batch)
    made = Bus(rows, GPU)
    chosen = torch.tensor([8, 0, 3, 3])
    got = made.get(chosen)
    assert got[1].tolist() == chosen.tolist()
    assert torch.equal(got[0].cpu().view(-1).view(torch.uint8), batch[0][chosen].view(-1).view(torch.uint8))
    made.close()
    rows.close()


def test_memory_that_cannot_be_registered(rows: SharedRows) -> None:
    """It is told, batches come all the same, and the driver's error is not the next operation's."""
    first = Bus(rows, GPU)
    second = Bus(rows, GPU)  # the driver registers no memory twice
    assert "gathered by the CPU, then copied: the driver did not register" in second.why
    assert torch.ones(3, device=GPU).sum().item() == 3
    check(second.get(torch.arange(50)), torch.arange(50))
    second.close()
    check(first.get(torch.arange(50)), torch.arange(50))
    first.close()
