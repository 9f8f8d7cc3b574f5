"""Threads that the training process computes with."""

from stoker.changes.change import Change, Whole
from stoker.changes.loaders import limit_threads

CHANGE = Change(
    id="threads",
    of="process",
    text="threads of torch, BLAS and OpenCV in the training process",
    kind="numerics",
    values=Whole(1, 1024),
    apply=limit_threads,
    backfires="sums over other parts round otherwise; a script that sets its own number keeps it",
)
