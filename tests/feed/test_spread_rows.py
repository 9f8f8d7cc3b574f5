"""A rank's part of samples that are spread: kept where there is a free row, and given away for others."""

from typing import Any

import numpy as np
import pytest
import torch

from stoker.errors import NotPackable, UsageError
from stoker.feed.layout import Layout
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.rows import Rows
from stoker.feed.tiers.spread import SpreadRows, carry

SAMPLES, RANKS = 40, 4
CPU = torch.device("cpu")


def batch_of(numbers: Any) -> Any:
    """Samples made from their numbers, of types that are sent in words of every width, or not at all."""
    whole = torch.as_tensor(np.asarray(numbers, np.int64))
    return {
        "long": whole[:, None] * torch.arange(3),
        "short": (whole[:, None] + torch.arange(5)).to(torch.uint16),
        "bytes": (whole[:, None] * torch.arange(3)).to(torch.uint8),
        "half": whole.to(torch.float16),
        "flag": whole % 2 == 0,
        "nothing": torch.zeros(len(whole), 0),
    }


def make(wanted: Indices) -> SpreadRows:
    rows = SpreadRows(Layout.of(batch_of([0])), SAMPLES, RANKS, CPU)
    rows.want(wanted)
    return rows


def assert_holds(rows: SpreadRows, numbers: Any) -> None:
    """These and no others, each with its own bytes."""
    held = np.flatnonzero(rows.held(np.arange(SAMPLES)))
    assert held.tolist() == sorted(numbers)
    got = rows.get(torch.from_numpy(rows.find(held)))
    for name, expected in batch_of(held).items():
        assert got[name].dtype == expected.dtype
        assert torch.equal(got[name], expected), name


def test_what_is_wanted_is_kept_once() -> None:
    """In whatever order it comes, twice or among others; what is held stays as it is."""
    rows = make(np.arange(10))
    rows.put(np.array([7, 3]), batch_of([7, 3]))
    rows.put(np.array([3, 9, 30, 9, 1]), batch_of([0, 9, 30, 9, 1]))
    assert_holds(rows, [1, 3, 7, 9])
    some = rows.complete
    rows.put(np.arange(10), batch_of(range(10)))
    assert (some, rows.complete) == (False, True)
    assert_holds(rows, range(10))
    assert rows.bytes == rows.rows * Rows.bytes_needed(rows.layout, 1)


def test_a_batch_that_lacks_rows_is_refused() -> None:
    """Whose are those that it has? Some of them would be kept as other samples."""
    rows = make(np.array([0, 1]))
    with pytest.raises(NotPackable, match="a batch of 4 samples has 3 rows"):
        rows.put(np.array([0, 1, 2, 3]), batch_of([0, 2, 3]))
    assert_holds(rows, [])


def test_samples_change_places_in_the_rows_there_are() -> None:
    """More often than there are free rows, and every leaf is right."""
    rows, other = make(np.arange(10)), make(np.arange(20, 30))
    rows.put(np.arange(10), batch_of(range(10)))
    other.put(np.arange(20, 30), batch_of(range(20, 30)))
    for _ in range(9):
        for out, coming in ((np.arange(2, 7), np.arange(22, 27)), (np.arange(22, 27), np.arange(2, 7))):
            giver = other if coming[0] > 10 else make_of(coming)
            memory, _ = giver._memory.opened()
            leaves = iter([leaf for leaf in memory if leaf.shape[1]])
            at = torch.from_numpy(giver.find(coming))
            rows.trade(out, out, coming, lambda words, leaves=leaves, at=at: next(leaves)[at])  # type: ignore[misc]
            assert_holds(rows, [0, 1, 7, 8, 9, *coming.tolist()])


def make_of(numbers: Indices) -> SpreadRows:
    rows = make(numbers)
    rows.put(numbers, batch_of(numbers))
    return rows


def test_a_copy_stays_where_it_is_sent_from() -> None:
    """Nothing is gone that is not said to be."""
    rows = make_of(np.arange(10))
    rows.trade(np.array([4, 5]), np.array([5]), np.empty(0, np.int64), lambda words: words[:0])
    assert_holds(rows, [0, 1, 2, 3, 4, 6, 7, 8, 9])


def test_carried_to_other_memory_and_back() -> None:
    """Down to memory for all samples, and up again as far as they are wanted."""
    rows, whole = make_of(np.arange(5, 15)), Rows.allocate(Layout.of(batch_of([0])), SAMPLES, CPU)
    carry(rows, whole)
    assert np.flatnonzero(whole.held(np.arange(SAMPLES))).tolist() == list(range(5, 15))
    again = make(np.arange(10, 20))
    carry(whole, again, np.arange(10, 20))
    assert_holds(again, range(10, 15))


def test_samples_that_there_was_no_memory_to_put_take_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is full: the rows are free for whatever comes next."""
    rows = make(np.arange(10))

    def put(*words: Any) -> None:
        raise torch.OutOfMemoryError("none left")

    with monkeypatch.context() as full:
        full.setattr(Rows, "put", put)
        for _ in range(9):
            with pytest.raises(torch.OutOfMemoryError):
                rows.put(np.arange(10), batch_of(range(10)))
    rows.put(np.arange(10), batch_of(range(10)))
    assert_holds(rows, range(10))


def test_rows_that_are_let_go_of_are_not_used() -> None:
    """An exchange that broke off leaves none that could be read."""
    rows = make_of(np.arange(10))
    rows.close()
    with pytest.raises(UsageError, match="let go of"):
        rows.get(torch.zeros(1, dtype=torch.int64))
