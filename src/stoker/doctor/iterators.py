"""What is seen from outside of a DataLoader's iterator: its workers, and what may lie ready."""

from typing import Any


def pids_of(iterator: Any) -> list[int]:
    """Of the worker processes; none where the loop makes its batches itself."""
    return [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.pid is not None]


def workers_of(iterator: Any) -> int:
    """How many it has; 0 where the loop makes its batches itself, or none is drawn from."""
    return int(getattr(iterator, "_num_workers", 0))


def in_queue(iterator: Any) -> int:
    """How many batches may lie ready: those are no measure of what the loader can do."""
    workers = workers_of(iterator)
    return workers * (getattr(iterator, "_prefetch_factor", None) or 0) + workers
