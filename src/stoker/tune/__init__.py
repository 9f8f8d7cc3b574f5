"""Tries changes one at a time on the user's own loop, and keeps what is proved."""

from typing import TYPE_CHECKING, Any

__all__ = ["find_lr", "find_micro_batch", "find_workers"]

if TYPE_CHECKING:
    from stoker.tune.lr import find_lr
    from stoker.tune.micro_batch import find_micro_batch
    from stoker.tune.workers import find_workers

_HOMES = {"find_lr": "lr", "find_micro_batch": "micro_batch", "find_workers": "workers"}


def __getattr__(name: str) -> Any:
    # Lazily: the process that holds a trial needs no torch, and the trial's own none of the searches.
    if name not in _HOMES:
        raise AttributeError(
            f"module 'stoker.tune' has no attribute {name!r}; it offers {', '.join(__all__)}"
        )
    from importlib import import_module

    return getattr(import_module(f"stoker.tune.{_HOMES[name]}"), name)
