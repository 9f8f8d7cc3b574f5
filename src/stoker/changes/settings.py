"""`stoker.toml`: the changes that were kept.

[changes]
num_workers = 8
autocast = "bf16"
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stoker.changes.catalogue import ALL
from stoker.changes.change import Change
from stoker.errors import UsageError

# Those that Stoker reads: `memory` is the feed's.
_TABLES = ("changes", "memory")
# Of a name's letters: `change`, `Changes` and `chnages` are near, `charts` and `model` are not.
_NEAR = 0.8


def read(path: Path) -> dict[str, Any]:
    """What a settings file says; other tables than `[changes]` are for others."""
    try:
        told = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"no settings at {path}: check the path, or make them with stoker tune") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; mend it, or use stoker tune") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}; mend it, or use stoker tune") from None
    _refuse_near(path, told)
    changes = told.get("changes", {})
    if not isinstance(changes, dict):
        raise UsageError(f"{path}: `changes` is {changes!r}; write a table: [changes], then a line a change")
    try:
        return {name: find(name).value(value) for name, value in changes.items()}
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _refuse_near(path: Path, told: Mapping[str, Any]) -> None:
    """Refuse what is meant to be read and would not be; what is nothing like it is another's."""
    for name in told:
        if name in _TABLES:
            continue
        if meant := get_close_matches(name.lower(), _TABLES, n=1, cutoff=_NEAR):
            raise UsageError(f"{path}: [{name}] is read by nothing; did you mean [{meant[0]}]?")
        if name in ALL:
            raise UsageError(f"{path}: {name} stands in no table: write [changes] in the line above it")


def find(name: str) -> Change:
    """A change by its id."""
    if name in ALL:
        return ALL[name]
    near = get_close_matches(name, ALL, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise UsageError(f"no change {name!r}{meant}; there are {', '.join(sorted(ALL))}")


def check(changes: Mapping[str, Any]) -> None:
    """Refuse those that cannot be had on this machine."""
    for name, value in changes.items():
        if reason := ALL[name].lacks(value):
            raise UsageError(f"change {name} = {value!r} cannot be had here: {reason}; take it out")
