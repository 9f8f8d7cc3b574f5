"""Stoker keeps the accelerator fed: why a PyTorch run is slow, proved, and what to do about it.

The names here are the whole top level; they load when first used, so that importing stoker in a
spawned worker costs milliseconds.
"""

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Feed",
    "ImageSource",
    "NpySource",
    "ObjectSource",
    "SqlSource",
    "TorchSource",
    "VolumeSource",
    "Watch",
    "__version__",
    "check",
    "diagnose",
]

if TYPE_CHECKING:
    from stoker.doctor.live import diagnose
    from stoker.facts import check
    from stoker.feed import Feed
    from stoker.feed.sources.images import ImageSource
    from stoker.feed.sources.npy import NpySource
    from stoker.feed.sources.object_source import ObjectSource
    from stoker.feed.sources.sql import SqlSource
    from stoker.feed.sources.torch import TorchSource
    from stoker.feed.sources.volume import VolumeSource
    from stoker.watch import Watch

_HOMES = {
    "Feed": "stoker.feed",
    "ImageSource": "stoker.feed.sources.images",
    "NpySource": "stoker.feed.sources.npy",
    "ObjectSource": "stoker.feed.sources.object_source",
    "SqlSource": "stoker.feed.sources.sql",
    "TorchSource": "stoker.feed.sources.torch",
    "VolumeSource": "stoker.feed.sources.volume",
    "Watch": "stoker.watch",
    "check": "stoker.facts",
    "diagnose": "stoker.doctor.live",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}; it offers {', '.join(__all__)}")
    # rich draws from `random` as it is imported, and a script's seed is its own.
    kept = random.getstate()
    try:
        return getattr(import_module(home), name)
    finally:
        random.setstate(kept)


def __dir__() -> list[str]:
    return sorted(__all__)
