"""Rows of a PostgreSQL server: the part `sql` of `stoker bench feed`. The ways are those of `sql_rates`."""

from typing import Any

from stoker.bench.children import say
from stoker.bench.contest import LEAST_TURNS
from stoker.bench.sql_rates import measure

ROWS, QUERIES = 100_000, 1000


def measure_sql(*, rows: int, queries: int, seconds: float) -> list[dict[str, Any]]:
    """A run for every way in every repeat."""
    say(f"sql: a server of its own with {rows} rows, for about {seconds:.0f} s")
    found = measure(rows, LEAST_TURNS, queries, seconds=seconds)
    return [
        {"part": "sql", "how": "turn", "turn": number, "kind": kind, "rows_s": rate}
        for number, rates in enumerate(found)
        for kind, rate in rates.items()
    ]
