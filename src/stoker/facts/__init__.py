"""What is true here, now: GPUs and who holds them, notebooks, the host, storage, torch. Reads only.

found = facts.collect(data=Path("/data"))
for warning in facts.warnings_of(found):
    print(warning.cause, warning.text, warning.fix)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.facts.page import Checked, check
    from stoker.facts.sample import Sampler
    from stoker.facts.snapshot import SCHEMA, collect, to_json
    from stoker.facts.terminal import show
    from stoker.facts.values import (
        Facts,
        Gpu,
        Holder,
        Host,
        Notebook,
        Pressure,
        Reads,
        Storage,
        Stray,
        Torch,
        Warned,
    )
    from stoker.facts.warnings import warnings_of

__all__ = [
    "SCHEMA",
    "Checked",
    "Facts",
    "Gpu",
    "Holder",
    "Host",
    "Notebook",
    "Pressure",
    "Reads",
    "Sampler",
    "Storage",
    "Stray",
    "Torch",
    "Warned",
    "check",
    "collect",
    "show",
    "to_json",
    "warnings_of",
]

_HOMES = {
    "SCHEMA": "snapshot",
    "Checked": "page",
    "Sampler": "sample",
    "check": "page",
    "collect": "snapshot",
    "show": "terminal",
    "to_json": "snapshot",
    "warnings_of": "warnings",
}


def __getattr__(name: str) -> Any:
    # Lazily: the process that writes a run's record comes here for the sampler alone.
    if name not in __all__:
        offered = ", ".join(__all__)
        raise AttributeError(f"module 'stoker.facts' has no attribute {name!r}; it offers {offered}")
    return getattr(import_module(f"stoker.facts.{_HOMES.get(name, 'values')}"), name)
