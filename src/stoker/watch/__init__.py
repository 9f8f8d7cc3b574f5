"""Observe a training loop: where each step's time goes, in a script nobody edited."""

from typing import TYPE_CHECKING, Any

__all__ = ["Batch", "Meeting", "Record", "Step", "Watch"]

if TYPE_CHECKING:
    from stoker.watch.phases import Batch, Meeting, Step
    from stoker.watch.record import Record
    from stoker.watch.watch import Watch

_HOMES = {"Watch": "watch", "Record": "record", "Batch": "phases", "Meeting": "phases", "Step": "phases"}


def __getattr__(name: str) -> Any:
    # Lazily: a spawned worker imports this package for `workers` alone.
    if name not in _HOMES:
        raise AttributeError(
            f"module 'stoker.watch' has no attribute {name!r}; it offers {', '.join(__all__)}"
        )
    from importlib import import_module

    return getattr(import_module(f"stoker.watch.{_HOMES[name]}"), name)
