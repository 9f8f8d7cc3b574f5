"""Which indices a loader was asked for, of the batches that it has handed out."""

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils.data import dataloader as torch_dataloader

# Batches; an experiment reads some of them again.
_KEPT = 64


class Handed:
    """The indices of each loader's last batches. What only lies in a worker's queue was not handed out."""

    def __init__(self) -> None:
        self._by_loader: dict[int, deque[Any]] = {}
        kind = vars(torch_dataloader)["_BaseDataLoaderIter"]
        next_index, reset = kind._next_index, kind._reset

        @wraps(next_index)
        def _next_index(iterator: Any) -> Any:
            index = next_index(iterator)
            vars(iterator).setdefault("_stoker_asked", deque()).append(index)
            return index

        @wraps(reset)
        def _reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            iterator._stoker_asked = deque()  # an epoch begins
            reset(iterator, *args, **kwargs)

        kind._next_index, kind._reset = _next_index, _reset

    def noting(self, draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`next()` of a loader's iterator, with a note of what the batch was asked for by."""

        @wraps(draw)
        def noted(iterator: Any) -> Any:
            batch = draw(iterator)
            known, asked = getattr(iterator, "_stoker_loader", None), vars(iterator).get("_stoker_asked")
            if known is not None and asked:
                self._by_loader.setdefault(known.id, deque(maxlen=_KEPT)).append(asked.popleft())
            return batch

        return noted

    def of(self, loader: int) -> list[Any]:
        """Indices of the loader's last batches, in their order."""
        return list(self._by_loader.get(loader, ()))
