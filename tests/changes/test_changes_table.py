"""The table of changes in the docs is made from the changes."""

from pathlib import Path

from stoker.changes import ALL
from stoker.changes.table import table


def test_the_table_is_up_to_date() -> None:
    """`python -m stoker.changes.table` makes it again, for `docs/tune.md`."""
    docs = Path(__file__).parents[2] / "docs/tune.md"
    assert table() in docs.read_text()


def test_every_change_says_how_to_ask_for_it() -> None:
    """A row each, with its kind and what it may be."""
    rows = table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(ALL)
    assert not any("see its file" in row for row in rows)
