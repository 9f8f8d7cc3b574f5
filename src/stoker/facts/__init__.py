"""What is true here, now: GPUs and who holds them, notebooks, the host, storage, torch. Reads only.

found = facts.collect(data=Path("/data"))
for warning in facts.warnings_of(found):
    print(warning.cause, warning.text, warning.fix)
"""

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
