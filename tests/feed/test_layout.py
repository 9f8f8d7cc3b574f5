"""The layout of a sample: what can be packed, where it lies in a row, and that it comes out as it went in."""

import json
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as some
from torch.utils._pytree import tree_flatten

from stoker.errors import NotPackable
from stoker.feed.layout import ALIGNMENT, Layout

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
)  # fmt: skip


class Pair(NamedTuple):
    left: Any
    right: Any


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one: Any, other: Any) -> bool:
    ours, our_tree = tree_flatten(one)
    theirs, their_tree = tree_flatten(other)
    return our_tree == their_tree and all(
        (a.dtype, a.shape, bytes_of(a)) == (b.dtype, b.shape, bytes_of(b))
        for a, b in zip(ours, theirs, strict=True)
    )


@some.composite
def tensors(draw: some.DrawFn, rows: int) -> torch.Tensor:
    shape = (rows, *draw(some.lists(some.integers(0, 5), max_size=3)))
    dtype = draw(some.sampled_from(DTYPES))
    size = dtype.itemsize * torch.Size(shape).numel()
    # Zeros and ones only where it is bool: other bytes are no bools.
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    return data.view(dtype).view(shape)


def batches(rows: int) -> some.SearchStrategy[Any]:
    return some.recursive(
        tensors(rows),
        lambda below: (
            some.dictionaries(some.text(max_size=4), below, min_size=1, max_size=3)
            | some.lists(below, min_size=1, max_size=3)
            | some.tuples(below, below)
            | some.builds(Pair, below, below)
        ),
        max_leaves=6,
    )


@given(rows=some.integers(0, 4), data=some.data())
def test_whatever_is_packed_comes_out_bit_identical(rows: int, data: some.DataObject) -> None:
    """Any tree of any types, through packed rows and back, through JSON and through pickle."""
    batch = data.draw(batches(rows))
    assume(any(leaf.shape[1:].numel() for leaf in tree_flatten(batch)[0]))
    layout = Layout.of(batch)
    packed = torch.full((rows, layout.row_bytes), 255, dtype=torch.uint8)
    layout.pack(batch, packed)
    assert same(layout.views(packed), batch)
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert all(offset % ALIGNMENT == 0 for offset in (*layout.offsets, layout.row_bytes))


def test_views_share_the_rows_memory() -> None:
    """A view written to is the row written to: nothing is copied, also out of rows that lie further apart."""
    layout = Layout.of((torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)))
    apart = torch.zeros(3, layout.row_bytes + 16, dtype=torch.uint8)
    rows = apart[:, : layout.row_bytes]
    values, numbers = layout.views(rows)
    values[2] = 1.5
    numbers[1] = 7
    assert rows[2, :20].view(torch.float32).tolist() == [1.5] * 5
    assert rows[1, layout.offsets[1] :].view(torch.int64)[0] == 7


def test_gaps_are_zeros() -> None:
    """Bytes between leaves do not depend on what stood there: equal samples have equal rows."""
    layout = Layout.of([torch.zeros(2, 3, dtype=torch.uint8), torch.ones(2)])
    rows = torch.full((2, layout.row_bytes), 255, dtype=torch.uint8)
    layout.pack([torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2)], rows)
    assert not rows.any()


def test_rows_that_do_not_fit_are_refused() -> None:
    """Of another size, type, or at odd addresses."""
    layout = Layout.of(torch.zeros(2, 8))
    with pytest.raises(ValueError, match=r"float32\[2, 32\], not bytes of \(n, 32\)"):
        layout.views(torch.zeros(2, 32))
    with pytest.raises(ValueError, match=r"uint8\[2, 33\], not bytes"):
        layout.views(torch.zeros(2, 33, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiple of 16"):
        layout.views(torch.zeros(2, 40, dtype=torch.uint8)[:, :32])
    with pytest.raises(ValueError, match="multiple of 16"):
        layout.views(torch.zeros(33, dtype=torch.uint8)[1:].view(1, 32))
    with pytest.raises(ValueError, match="3 samples for 2 rows"):
        layout.pack(torch.zeros(3, 8), torch.zeros(2, 32, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"x": torch.zeros(2), "name": ["a", "b"]}, r"batch\['name'\]\[0\] is a str"),
        ({"x": torch.zeros(2), "y": torch.zeros(3)}, r"batch\['y'\] has 3 rows and batch\['x'\] 2"),
        ({"x": torch.zeros(2), 3: torch.zeros(2)}, r"has the key 3, a int"),
        ([torch.zeros(2), torch.tensor(1.0)], r"batch\[1\] is a tensor without dimensions"),
        ((torch.zeros(2), torch.eye(2).to_sparse()), r"batch\[1\] is a torch.sparse_coo tensor"),
        ({}, "no tensor"),
        ([torch.zeros(2, 0)], "no numbers"),
        (None, "batch is a NoneType"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(batch: Any, told: str) -> None:
    """The message names the place in the batch and what is wrong there."""
    with pytest.raises(NotPackable, match=told):
        Layout.of(batch)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"x": torch.zeros(2, 4)}, r"holds samples of float32\[4\], but those before were float32\[3\]"),
        ({"x": torch.zeros(2, 3).double()}, r"float64\[3\], but those before were float32\[3\]"),
        ({"y": torch.zeros(2, 3)}, r"a dict of y, but the samples before were a dict of x"),
        (torch.zeros(2, 3), r"a tensor, but the samples before were a dict"),
        ([torch.zeros(2, 3)], r"a list of 1, but"),
    ],
)
def test_a_batch_of_another_layout_is_refused(batch: Any, told: str) -> None:
    """All samples of a source are built alike; one that is not is named."""
    with pytest.raises(NotPackable, match=told):
        Layout.of({"x": torch.zeros(2, 3)}).flatten(batch)


def test_the_order_of_a_dicts_keys_does_not_matter() -> None:
    """A batch whose keys come in another order is taken by name."""
    layout = Layout.of({"a": torch.zeros(1), "b": {"c": torch.zeros(1), "d": torch.zeros(1)}})
    batch = {"b": {"d": torch.tensor([4.0]), "c": torch.tensor([3.0])}, "a": torch.tensor([1.0])}
    assert [leaf.item() for leaf in layout.flatten(batch)] == [1.0, 3.0, 4.0]


def test_json_that_is_no_layout_is_refused() -> None:
    """Missing parts, unknown types, trees that do not fit their leaves, named tuples that are not loaded."""
    good = Layout.of(Pair(torch.zeros(1), torch.zeros(1))).to_json()
    gone = good["tree"] | {"named": "nowhere:Pair"}
    for told in (
        {},
        good | {"leaves": good["leaves"][:1]},
        good | {"leaves": [{"dtype": "nn", "shape": []}] * 2},
        good | {"tree": {"set": [None, None]}},
        good | {"tree": gone},
    ):
        with pytest.raises(ValueError, match=r"layout|named tuple"):
            Layout.from_json(told)


def test_batches_that_were_gathered_together_are_apart() -> None:
    """To autograd too: writing into one does not spoil what was computed from another."""
    layout = Layout.of(torch.zeros(1, 3))
    first, second = layout.split([torch.ones(8, 3)], [5, 3])
    weight = torch.ones(3, requires_grad=True)
    loss = (first * weight).sum()
    second.mul_(2)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5, 5, 5]
    second.mul_(weight)
    assert second.requires_grad
