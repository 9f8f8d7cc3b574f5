"""What SQLite alone does: collations of columns, and values that it cannot take."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import QueryRefused
from stoker.feed.sources.sql import SqlSource


@pytest.fixture
def named(tmp_path: Path) -> str:
    """The URL of three rows, two of whose names are one to their column."""
    with closing(sqlite3.connect(tmp_path / "named.db")) as connection, connection:
        connection.execute("CREATE TABLE named (name TEXT COLLATE NOCASE, number INTEGER)")
        connection.execute("INSERT INTO named VALUES ('a', 1), ('A', 2), ('b', 3)")
    return f"sqlite:///{tmp_path}/named.db"


def test_keys_are_told_apart_whatever_the_collation(named: str) -> None:
    """A look-up by one of them finds both."""
    source = SqlSource(named, "SELECT name, number FROM named")
    assert source.keys == ["A", "a", "b"]
    assert source.read(np.array([1, 2, 1]))["number"].tolist() == [1, 3, 1]
    assert source.read(np.array([0, 1]))["number"].tolist() == [2, 1]


@pytest.mark.parametrize(("value", "told"), [(2**70, "too large"), ("\udcff", "surrogates")])
def test_a_parameter_that_it_cannot_take_is_refused(named: str, value: Any, told: str) -> None:
    """In our words, like the others."""
    with pytest.raises(QueryRefused, match=f"refuses the query: .*{told}"):
        SqlSource(named, "SELECT name FROM named WHERE number < $1", parameters=(value,))
