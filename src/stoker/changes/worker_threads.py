"""Threads that each worker process computes with."""

from stoker.changes.change import Change, Whole
from stoker.changes.loaders import alter_in_workers

CHANGE = Change(
    id="worker_threads",
    of="loader",
    text="threads of torch, BLAS and OpenCV in each worker",
    kind="numerics",
    values=Whole(1, 1024),
    apply=lambda value: alter_in_workers("threads", value),
    backfires="sums over other parts round otherwise",
)
