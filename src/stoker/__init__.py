"""Stoker keeps the accelerator fed: why a PyTorch run is slow, proved, and what to do about it.

The names here are the whole top level; they load when first used, so that importing stoker in a
spawned worker costs milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Watch", "__version__", "check"]

if TYPE_CHECKING:
    from stoker.facts import check
    from stoker.watch import Watch

_HOMES = {"Watch": "stoker.watch", "check": "stoker.facts"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
