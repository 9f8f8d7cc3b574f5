"""A feed that holds the rows of a database: all of them are there before the first batch, as they came."""

# ruff: noqa: F811  fixtures are imported by name

from typing import Any

import numpy as np
import pytest
import torch

from feed.postgres import Database, database, server  # noqa: F401  fixtures
from stoker import Feed
from stoker.errors import SourceChanged
from stoker.feed.sources.sql import Column, SqlSource

ROWS = 500
OPTIONS: dict[str, Any] = {"batch_size": 64, "shuffle": True, "device": "cpu"}


@pytest.fixture
def shots(database: Database) -> Database:
    """Rows that do not lie in the order of their keys; every tenth has no gain."""
    values = ", ".join(
        f"({key}, {database.bytes(np.full(6, key, np.float32).tobytes())}, "
        f"{'NULL' if key % 10 == 0 else key / 4})"
        for key in range(ROWS, 0, -1)
    )
    database.run(
        f"CREATE TABLE shots (id integer PRIMARY KEY, image {database.blob}, gain {database.real})",
        f"INSERT INTO shots VALUES {values}",
    )
    return database


def open_shots(database: Database) -> SqlSource:
    images = {"image": Column(dtype=torch.float32, shape=(2, 3))}
    return SqlSource(
        database.url, "SELECT id, image, gain FROM shots", columns=images, nulls={"gain": "mask"}
    )


@pytest.mark.parametrize("subset", [None, np.arange(0, ROWS, 2)], ids=["all", "half"])
def test_held_rows_are_those_of_the_source(shots: Database, subset: Any) -> None:
    """Bit by bit in every epoch, all of the source or some of it; nothing is read after the first batch."""
    plain = Feed(open_shots(shots), tier="source", subset=subset, **OPTIONS)
    held = Feed(open_shots(shots), tier="ram", subset=subset, **OPTIONS)
    expected = [list(plain), list(plain)]
    first = iter(held)
    batches = [next(first)]
    shots.run("DROP TABLE shots")
    for epoch in ([*batches, *first], list(held)):
        for batch, right in zip(epoch, expected.pop(0), strict=True):
            assert list(batch) == list(right)
            assert all(torch.equal(batch[name], right[name]) for name in right)
    assert set(batches[0]) == {"id", "image", "gain", "gain_mask"}
    held.close()
    plain.close()


def test_rows_that_changed_since_are_told_before_the_first_batch(shots: Database) -> None:
    """They are not held."""
    held = Feed(open_shots(shots), tier="ram", **OPTIONS)
    shots.run("UPDATE shots SET gain = 1")
    with pytest.raises(SourceChanged):
        next(iter(held))
    held.close()
