"""Loaders are altered when they are first iterated, and only those that are iterated with gradients enabled.

So a loader is met wherever it was made, in a framework too, and one that only validates, which nearly always
happens without gradients, keeps its settings and its memory.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset, SequentialSampler

from stoker.changes.loader_classes import is_stateful, put_into_each
from stoker.feed.dataset_state import plain_attributes
from stoker.feed.held_loader import is_reader

# torch's own, where none is given.
_PREFETCH = 2


@dataclass(slots=True)
class _Wanted:
    settings: dict[str, Any] = field(default_factory=dict)
    in_worker: dict[str, Any] = field(default_factory=dict)
    met: list["AlteredLoader"] = field(default_factory=list)
    installed: bool = False


@dataclass(frozen=True, kw_only=True)
class AlteredLoader:
    """A loader that was met: what it had, what it got, and what was left alone and why."""

    loader: str
    before: dict[str, Any]
    after: dict[str, Any]
    left: str | None = None


_wanted = _Wanted()


def alter(setting: str, value: Any) -> None:
    """Give a DataLoader's setting this value from now on."""
    _install()
    _wanted.settings[setting] = value


def alter_in_workers(setting: str, value: Any) -> None:
    """Have worker processes begin with this; what is known: `threads`, `affinity`."""
    _install()
    _wanted.in_worker[setting] = value


def met() -> tuple[AlteredLoader, ...]:
    """The loaders that were altered so far."""
    return tuple(_wanted.met)


def lives_on(loader: Any) -> bool:
    """Whether its workers live on from epoch to epoch by the script's own word."""
    had: dict[str, Any] = vars(loader).get("_stoker_had", {})
    return bool(had.get("persistent_workers", loader.persistent_workers))


def note(
    loader: Any,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    left: str | None = None,
) -> None:
    """A loader was met: what became of it."""
    _wanted.met.append(
        AlteredLoader(
            loader=f"{type(loader).__name__}({type(loader.dataset).__name__})",
            before=before or {},
            after=after or {},
            left=left,
        )
    )


def _install() -> None:
    if _wanted.installed:
        return
    _wanted.installed = True
    put_into_each(_put)


def _put(kind: Any) -> None:
    begin = kind.__iter__

    @wraps(begin)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if torch.is_grad_enabled() and not hasattr(self, "_stoker_had") and not is_reader(self.dataset):
            _alter(self)
        if self.persistent_workers and not lives_on(self):
            _keep_workers(self)
        return begin(self)

    kind.__iter__ = __iter__


def _keep_workers(loader: Any) -> None:
    """An epoch begins, with the workers of the last one, where the script would have new ones."""
    state = plain_attributes(loader.dataset)
    if loader._iterator is not None and state == vars(loader).get("_stoker_state"):
        # An iterator that is made anew draws its seed; without that draw all that follow would differ.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return
    loader._iterator = None  # new ones: those that live do not see what the script has changed in its dataset
    vars(loader)["_stoker_state"] = state


def _alter(loader: Any) -> None:
    """Give it what is wanted. Some of its settings refuse to be set, hence its fields."""
    fields, settings = vars(loader), dict(_wanted.settings)
    left = _keep_place(loader, settings)
    if isinstance(loader.dataset, IterableDataset) and "num_workers" in settings:
        # Each worker would go through all of it, unless the dataset shares itself out: only its author knows.
        left = "num_workers: an IterableDataset decides itself what each worker reads"
        del settings["num_workers"]
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "in_order")
    had = {name: getattr(loader, name, None) for name in names}
    workers = settings.get("num_workers", loader.num_workers)
    fields["num_workers"] = workers
    if workers:
        fields["prefetch_factor"] = settings.get("prefetch_factor", loader.prefetch_factor or _PREFETCH)
        fields["persistent_workers"] = settings.get("persistent_workers", loader.persistent_workers)
        if "start_method" in settings:
            loader.multiprocessing_context = settings["start_method"]
        if _wanted.in_worker:
            fields["worker_init_fn"] = InWorker(loader.worker_init_fn, dict(_wanted.in_worker))
    else:
        loader.multiprocessing_context = None
        fields["prefetch_factor"], fields["persistent_workers"] = None, False
    for name in ("pin_memory", "in_order"):
        if name in settings:
            fields[name] = settings[name]
    fields["_stoker_had"] = had
    now = {name: getattr(loader, name, None) for name in names}
    changed = [name for name in names if had[name] != now[name]]
    note(
        loader,
        before={name: had[name] for name in changed},
        after={name: now[name] for name in changed},
        left=left,
    )


def _keep_place(loader: Any, settings: dict[str, Any]) -> str | None:
    """Take out what would move a StatefulDataLoader to other samples; why, where there is such.

    Its samplers draw once more an epoch where it has workers (seen with torchdata 0.11).
    """
    if not is_stateful(loader):
        return None
    reasons = {}
    workers = settings.get("num_workers", loader.num_workers)
    if loader.next_iter_state is not None and workers != loader.num_workers:
        reasons["num_workers"] = "it goes on from a state, which is of as many workers as it had"
    elif not isinstance(loader.sampler, (SequentialSampler, DistributedSampler)):
        if bool(workers) != bool(loader.num_workers):
            reasons["num_workers"] = "a StatefulDataLoader with workers shuffles otherwise than one without"
        if settings.get("persistent_workers", loader.persistent_workers) != loader.persistent_workers:
            reasons["persistent_workers"] = "a StatefulDataLoader whose workers live on shuffles otherwise"
    for name in reasons:
        del settings[name]
    return "; left alone: ".join(f"{name}: {why}" for name, why in reasons.items()) or None


class InWorker:
    """How a worker begins: with what is wanted, then with what the script has it begin with."""

    def __init__(self, own: Callable[[int], None] | None, wanted: dict[str, Any]) -> None:
        self._own, self._wanted = own, wanted

    def __call__(self, worker: int) -> None:
        """In the worker, before its first sample."""
        if self._wanted.get("affinity"):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        if threads := self._wanted.get("threads"):
            limit_threads(threads)
        if self._own is not None:
            self._own(worker)


def limit_threads(threads: int) -> None:
    """Of this process: torch's own, and those of what is loaded already."""
    torch.set_num_threads(threads)
    if cv2 := sys.modules.get("cv2"):
        cv2.setNumThreads(threads)
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
