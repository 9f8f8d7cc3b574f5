"""Changes put over a script's own settings, and what they met in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.changes.catalogue import ALL
from stoker.changes.loaders import AlteredLoader, met
from stoker.changes.models import called
from stoker.changes.settings import check, read
from stoker.watch.command import Altered


def from_file(path: Path) -> Altered:
    """The changes of a settings file, for a run; what cannot be had here is refused."""
    changes = read(path)
    check(changes)
    return Altered(settings=changes, put=lambda: put(changes), told=lambda: told(changes))


def put(changes: Mapping[str, Any]) -> None:
    """Put changes in place in this process, before the script begins."""
    for name, value in changes.items():
        ALL[name].apply(value)


def told(changes: Mapping[str, Any]) -> list[str]:
    """What they met in the script, a line each; that they met nothing is said too."""
    lines = list(dict.fromkeys(_line(one) for one in met()))  # one that is made anew every epoch is told once
    if not met() and (of_loaders := [name for name in changes if ALL[name].of == "loader"]):
        lines.append(f"no loader was iterated for training: {', '.join(of_loaders)} had no effect")
    if not called() and (of_models := [name for name in changes if ALL[name].of == "model"]):
        lines.append(f"no model was met in its forward pass: {', '.join(of_models)} had no effect")
    for name, value in changes.items():
        lines += ALL[name].told(value)
    return lines


def _line(one: AlteredLoader) -> str:
    became = ", ".join(f"{name} {one.before[name]} -> {now}" for name, now in one.after.items())
    left = f"; left alone: {one.left}" if one.left else ""
    return f"changed: {one.loader}: {became or 'as it was'}{left}"
