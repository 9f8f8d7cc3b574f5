"""Keep the device fed: order, sources, tiers, and the loader over them.

The names load when first used: a worker that reads from a source needs nothing of the loader.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.feed.feed import Feed
    from stoker.feed.order import Order
    from stoker.feed.place import Place, State
    from stoker.feed.sources.base import Source

__all__ = ["Feed", "Order", "Place", "Source", "State"]
_HOMES = {
    "Feed": "stoker.feed.feed",
    "Order": "stoker.feed.order",
    "Place": "stoker.feed.place",
    "Source": "stoker.feed.sources.base",
    "State": "stoker.feed.place",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker.feed' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
