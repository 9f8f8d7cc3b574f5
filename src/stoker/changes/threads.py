"""Threads that the training process computes with: at most so many, also where the script asks for more."""

import os
from functools import wraps

import torch

from stoker.changes.change import Change, Whole
from stoker.changes.loaders import limit_threads


def _apply(most: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(most)  # of processes that begin anew
    limit_threads(most)
    set_threads = torch.set_num_threads

    @wraps(set_threads)
    def capped(threads: int) -> None:
        set_threads(min(threads, most))

    torch.set_num_threads = capped  # type: ignore[assignment]


CHANGE = Change(
    id="threads",
    of="process",
    text="threads of torch, BLAS and OpenCV in the training process, at most",
    kind="numerics",
    values=Whole(1, 1024),
    apply=_apply,
    backfires="sums over other parts round otherwise",
)
