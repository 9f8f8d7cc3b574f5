"""Settings put over what a script says, in its own process: the one place where that is done.

A DataLoader gets other arguments than the script gives it; torch starts no more threads than allowed. Loaders
with another number of workers than the one that trains (a validation set's, say) are left alone.
"""

import inspect
import os
from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

# Arguments of a DataLoader that may be put over.
OF_LOADER = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size")
OF_THREADS = ("threads", "worker_threads")
ALL = (*OF_LOADER, *OF_THREADS)
# Those that a DataLoader without workers refuses.
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout")


def put(settings: Mapping[str, Any], *, workers: int | None = None) -> None:
    """Put settings over the script's, for loaders that have so many workers; None: for those with any."""
    for name in OF_THREADS:
        if name in settings:
            _cap_threads(int(settings[name]))
    wanted = {name: settings[name] for name in OF_LOADER if name in settings}
    if not wanted:
        return
    init = DataLoader.__init__
    signature = inspect.signature(init)

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = signature.bind(self, *args, **kwargs)
        has = given.arguments.get("num_workers", 0)
        if has == workers if workers is not None else has:
            given.arguments.update(_that_go_together(wanted, given.arguments))
        init(*given.args, **given.kwargs)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def _that_go_together(wanted: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those that this loader can take."""
    fitting = dict(wanted)
    first = fitting.get("num_workers") == 1 and not given.get("num_workers", 0)
    if isinstance(given.get("dataset"), IterableDataset) and not first:
        fitting.pop("num_workers", None)  # each would read all of it, unless it shares itself out
    if not fitting.get("num_workers", given.get("num_workers", 0)):
        for name in _OF_WORKERS:
            given.pop(name, None)
            fitting.pop(name, None)
    if given.get("batch_sampler") is not None or given.get("batch_size", 1) is None:
        fitting.pop("batch_size", None)  # the script makes its own batches
    return fitting


def _cap_threads(most: int) -> None:
    """In this process and those it starts; the environment is for those that begin anew."""
    os.environ["OMP_NUM_THREADS"] = str(most)
    set_threads = torch.set_num_threads

    @wraps(set_threads)
    def capped(threads: int) -> None:
        set_threads(min(threads, most))

    torch.set_num_threads = capped  # type: ignore[assignment]
    capped(torch.get_num_threads())
