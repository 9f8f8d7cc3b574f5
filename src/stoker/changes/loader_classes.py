"""The classes of loaders that changes go into: torch's own, and torchdata's with methods of its own."""

import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_waiting: list[Callable[[Any], None]] = []


def put_into_each(put: Callable[[Any], None]) -> None:
    """Do this with torch's own class now, and with torchdata's as soon as a script has imported it."""
    put(DataLoader)
    if _STATEFUL in sys.modules:
        put(sys.modules[_STATEFUL].StatefulDataLoader)
        return
    if not _waiting:
        DataLoader.__init_subclass__ = classmethod(_on_subclass)  # type: ignore[assignment]
    _waiting.append(put)


def is_stateful(loader: Any) -> bool:
    """Whether it is torchdata's, which keeps its place in an iterator of its own."""
    return any(kind.__module__ == _STATEFUL for kind in type(loader).__mro__)


def _on_subclass(kind: Any, /, **kwargs: Any) -> None:
    super(DataLoader, kind).__init_subclass__(**kwargs)
    if kind.__module__ == _STATEFUL:
        for put in _waiting:
            put(kind)
