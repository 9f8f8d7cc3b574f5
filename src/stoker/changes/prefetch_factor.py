"""Batches that each worker makes ahead."""

from stoker.changes.change import Change, Whole
from stoker.changes.loaders import alter

CHANGE = Change(
    id="prefetch_factor",
    of="loader",
    text="batches that each worker makes ahead",
    kind="same",
    values=Whole(1, 1024),
    apply=lambda value: alter("prefetch_factor", value),
    backfires="workers x prefetch batches wait in memory and in /dev/shm",
)
