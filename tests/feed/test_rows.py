"""Samples side by side in one memory: what goes in comes out, whole, and is the caller's own."""

import sys
from collections import namedtuple
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feed.numbered import Numbered, assert_same
from stoker.errors import NotPackable, UsageError
from stoker.feed.layout import Layout
from stoker.feed.tiers.rows import Rows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Pair = namedtuple("Pair", "left right")


def rows_of(source: Numbered, device: str = "cpu") -> Rows:
    return Rows.allocate(Layout.of(source.read(np.arange(1))), len(source), device)


def indices(*numbers: int, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def host(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in batch.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_samples_come_as_they_were_put(device: str) -> None:
    """In any order, some twice, from several batches."""
    source = Numbered(20, numbers=1001)
    rows = rows_of(source, device)
    for batch in np.array_split(np.random.default_rng(0).permutation(20), 6):
        rows.put(batch, source.read(batch))
    chosen = [7, 0, 19, 7, 3]
    got = rows.get(indices(*chosen, device=device))
    assert {tensor.device.type for tensor in got.values()} == {device}
    assert_same(host(got), source.read(np.array(chosen)))


def test_samples_can_be_written_in_place() -> None:
    """What has been told of is held, what has not is not; a writer that fails leaves what it told of."""
    source = Numbered(20, numbers=1001)
    rows = rows_of(source)

    def write(every: dict[str, torch.Tensor]) -> Iterator[Any]:
        for places in (slice(0, 5), np.array([19, 7])):
            for name, column in source.read(np.arange(20)[places]).items():
                every[name][places] = column
            yield places
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        rows.fill(write)
    held = [0, 1, 2, 3, 4, 7, 19]
    assert np.flatnonzero(rows.held(np.arange(20))).tolist() == held
    assert_same(rows.get(indices(*held)), source.read(np.array(held)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.uint8, (3, 5)), (torch.uint16, (3,)), (torch.uint32, (2, 2)), (torch.uint64, (1,)),
        (torch.bool, (7,)), (torch.bfloat16, (3,)), (torch.float8_e4m3fn, (6,)), (torch.float64, ()),
        (torch.complex64, (3,)), (torch.complex128, (1,)), (torch.float32, (2, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_every_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    """Bit by bit, also what torch's own operations do not know."""
    size = 4 * dtype.itemsize * int(np.prod(shape))
    noise = torch.randint(0, 2, (size,), dtype=torch.uint8)
    batch = [noise.view(dtype).view(4, *shape), torch.arange(4)]
    rows = Rows.allocate(Layout.of(batch), 9, device)
    rows.put(np.array([8, 1, 0, 5]), batch)
    got = rows.get(indices(5, 8, 8, device=device))
    assert (got[0].dtype, got[0].shape) == (dtype, (3, *shape))
    as_bytes = got[0].cpu().contiguous().view(-1).view(torch.uint8)
    assert torch.equal(as_bytes, batch[0][[3, 0, 0]].view(-1).view(torch.uint8))
    assert got[1].tolist() == [3, 0, 0]


def test_trees_come_back_as_they_were() -> None:
    """Dicts, named tuples and lists, nested."""
    batch = {"a": [torch.zeros(2, 3), Pair(torch.ones(2), torch.arange(2))]}
    rows = Rows.allocate(Layout.of(batch), 2, "cpu")
    rows.put(np.arange(2), batch)
    got = rows.get(indices(1, 0))
    assert isinstance(got["a"][1], Pair)
    assert got["a"][1].right.tolist() == [1, 0]


def put_and_get(given: torch.Tensor) -> torch.Tensor:
    rows = Rows.allocate(Layout.of(given), len(given), "cpu")
    rows.put(np.arange(len(given)), given)
    got: torch.Tensor = rows.get(torch.arange(len(given)))
    return got


def test_batches_that_lie_oddly_are_understood() -> None:
    """Strided, beginning at an odd address, conjugate, negated, or with a history for gradients."""
    flat = torch.arange(65, dtype=torch.uint8)
    for tensor in (
        torch.arange(12.0).view(3, 4).t(),
        flat[1:].view(4, 16),
        torch.from_numpy(flat.numpy()[1:]).view(4, 16),
        torch.tensor([[1 + 2j], [3 - 4j]]).conj(),
        torch.tensor([[1 + 2j], [3 - 4j]]).conj().imag,
        torch.ones(3, 2, requires_grad=True) * 2,
    ):
        got = put_and_get(tensor)
        assert torch.equal(got, tensor.detach())
        assert got.is_contiguous()
        assert not got.requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_is_the_callers_own(device: str) -> None:
    """Who keeps all batches and writes into them, or into what was put, changes nothing that comes later."""
    source = Numbered(12)
    rows = rows_of(source, device)
    first = source.read(np.arange(12))
    rows.put(np.arange(12), first)
    for tensor in first.values():
        tensor.zero_()
    kept = []
    for _ in range(3):
        batch = rows.get(torch.arange(12, device=device))
        assert_same(host(batch), source.read(np.arange(12)))
        for tensor in batch.values():
            tensor.zero_()
        kept.append(batch)
    assert all(not tensor.any() for batch in kept for tensor in batch.values())


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_held_stays_as_it_is(device: str) -> None:
    """A second put of a sample changes nothing, beside others that are new: it may just be read."""
    source, other = Numbered(6), Numbered(6, version="b")
    rows = rows_of(source, device)
    rows.put(np.array([1, 1, 4]), source.read(np.array([1, 1, 4])))
    rows.put(np.array([4, 5, 1]), other.read(np.array([4, 5, 1])))
    rows.put(np.array([4]), other.read(np.array([4])))
    got = host(rows.get(indices(1, 4, 5, device=device)))
    assert torch.equal(got["values"][:2], source.read(np.array([1, 4]))["values"])
    assert torch.equal(got["values"][2:], other.read(np.array([5]))["values"])


def test_what_is_held_is_known() -> None:
    """Also what others put who share the memory."""
    source = Numbered(200_000, numbers=1)
    mine = rows_of(source)
    words, flags = mine.opened()
    leaves = [words[0].view(torch.float32), words[1].view(-1)]
    theirs = Rows(mine.layout, leaves, flags)
    for half, other in ((np.arange(0, 200_000, 2), mine), (np.arange(1, 199_999, 2), theirs)):
        other.put(half, source.read(half))
        assert not mine.complete
        assert not theirs.complete
    assert mine.held(np.array([0, 1, 199_999])).tolist() == [True, True, False]
    assert mine.holds(np.arange(199_999))
    assert not mine.holds(np.array([5, 199_999]))
    theirs.put(np.array([199_999]), source.read(np.array([199_999])))
    assert mine.complete
    assert theirs.complete


def test_complete_means_all_while_another_fills() -> None:
    """A flag that is set between two looks at it says nothing of those behind it."""
    source = Numbered(20_000, numbers=1)
    rows = rows_of(source)
    flags = rows.opened()[1]

    def fill() -> None:
        for number in range(len(flags)):
            flags[number] = 1

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        filler = Thread(target=fill)
        filler.start()
        while not rows.complete:
            pass
        assert flags.all()
    finally:
        sys.setswitchinterval(usual)
        filler.join()


@given(st.lists(st.lists(st.integers(0, 14), max_size=6), max_size=8))
def test_complete_when_each_was_put(batches: list[list[int]]) -> None:
    """Whatever comes in whatever order: exactly what was put is held."""
    source = Numbered(15, numbers=2)
    rows = rows_of(source)
    put: set[int] = set()
    for batch in batches:
        numbers = np.array(batch, np.int64)
        rows.put(numbers, source.read(numbers))
        put |= set(batch)
        assert np.flatnonzero(rows.held(np.arange(15))).tolist() == sorted(put)
        assert rows.complete == (len(put) == 15)
    there = np.array(sorted(put), np.int64)
    assert_same(rows.get(torch.from_numpy(there)), source.read(there))


def test_large_batches_are_copied_by_several_threads() -> None:
    """Every row gets to its place."""
    source = Numbered(40, numbers=300_000)
    rows = rows_of(source)
    rows.put(np.arange(40), source.read(np.arange(40)))
    chosen = np.random.default_rng(0).permutation(40)
    assert_same(rows.get(torch.from_numpy(chosen)), source.read(chosen))


def test_an_empty_batch() -> None:
    """Has no rows, and harms nothing."""
    source = Numbered(3)
    rows = rows_of(source)
    none = np.empty(0, np.int64)
    rows.put(none, source.read(none))
    assert_same(rows.get(torch.from_numpy(none)), source.read(none))


def test_bytes_needed() -> None:
    """What the tensors take."""
    layout = Layout.of({"a": torch.zeros(1, 3), "b": torch.zeros(1, dtype=torch.uint8)})
    assert Rows.bytes_needed(layout, 10) == 130


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_told_by_torch(device: str) -> None:
    """As torch tells it: a feed then takes the next tier."""
    layout = Layout.of(torch.zeros(1, 1 << 20))
    with pytest.raises((torch.OutOfMemoryError, RuntimeError), match="alloc"):
        Rows.allocate(layout, 1 << 30, device)


def test_wrong_use_is_told() -> None:
    """A sample that is not there, a batch of another kind, too few rows, memory let go of."""
    source = Numbered(3)
    rows = rows_of(source)
    batch: Any = source.read(np.arange(3))
    with pytest.raises(IndexError, match="no sample 3: there are 3"):
        rows.put(np.array([0, 1, 3]), batch)
    with pytest.raises(IndexError, match="no sample 7"):
        rows.get(indices(7))
    with pytest.raises(NotPackable, match="values"):
        rows.put(np.arange(3), {**batch, "values": batch["number"]})
    with pytest.raises(NotPackable, match="a batch of 2 samples has 3 rows"):
        rows.put(np.arange(2), batch)
    with pytest.raises(ValueError, match="for 3 samples of float32"):
        Rows(rows.layout, [torch.zeros(2, 5000), torch.zeros(3)], np.zeros(3, np.uint8))
    assert not rows.held(np.arange(3)).any()
    rows.close()
    with pytest.raises(UsageError, match=r"let go of by close\(\)"):
        rows.get(indices(0))
