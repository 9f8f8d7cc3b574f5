"""The loaders that this process draws from, by identity: what is known of each without drawing.

What became of their batches is worked out elsewhere (`loaders.py`), by their ids.
"""

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import IterableDataset


@dataclass(slots=True, eq=False)
class KnownLoader:
    """A loader as the script made it. `length` and `workers` are known once it is iterated."""

    id: int
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    length: int | None = None
    workers: tuple[int, ...] = ()


class KnownLoaders:
    """All of them, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.all: list[KnownLoader] = []
        self._by_key: dict[int, tuple[weakref.ref[Any] | None, KnownLoader]] = {}

    def of(self, source: Any) -> KnownLoader:
        """The entry for a loader object, made when it is first seen."""
        known = self._by_key.get(id(source))
        if known is not None and (known[0] is None or known[0]() is source):
            return known[1]
        try:
            ref = weakref.ref(source)
        except TypeError:  # a generator's or C object's identity is all there is
            ref = None
        loader = self._successor(_name_of(source), _settings_of(source))
        self._by_key[id(source)] = (ref, loader)
        return loader

    def _successor(self, name: str, settings: dict[str, Any]) -> KnownLoader:
        """The entry of one like it that is gone (made anew every epoch, it is one loader), or a new one."""
        for key, (ref, loader) in self._by_key.items():
            gone = ref is not None and ref() is None
            if gone and settings and (loader.name, loader.settings) == (name, settings):
                del self._by_key[key]
                return loader
        loader = KnownLoader(id=len(self.all), name=name, settings=settings)
        self.all.append(loader)
        return loader


def _name_of(source: Any) -> str:
    dataset = getattr(source, "dataset", None)
    kind = type(source).__name__
    return kind if dataset is None else f"{kind}({type(dataset).__name__})"


def _settings_of(source: Any) -> dict[str, Any]:
    """What a DataLoader was given; empty for anything else."""
    if getattr(source, "dataset", None) is None or not hasattr(source, "num_workers"):
        return {}
    context = getattr(source, "multiprocessing_context", None)
    start = getattr(context, "_name", None) or (type(context).__name__ if context is not None else None)
    kept = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "drop_last")
    settings = {name: getattr(source, name, None) for name in kept}
    settings["in_order"] = getattr(source, "in_order", None)
    settings["start_method"] = start
    settings["dataset"] = type(source.dataset).__qualname__
    settings["iterable"] = isinstance(source.dataset, IterableDataset)
    return settings
