"""The plan on its way from the caller to the supervisor and to the script's process: a JSON file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.errors import UsageError
from stoker.scratch.values import Guards, Limits, Plan

_NAME = "plan.json"


def save(plan: Plan, work: Path) -> None:
    """Write the plan into the run's folder, paths made absolute."""
    fields = asdict(plan)
    for name in ("stdin", "output"):
        fields[name] = None if fields[name] is None else _absolute(fields[name])
    for name in ("writable", "direct"):
        fields[name] = [_absolute(path) for path in fields[name]]
    fields["env"] = dict(plan.env)
    try:
        text = json.dumps(fields)
    except TypeError as error:
        raise UsageError(f"the hook's argument must be JSON-able: {error}") from None
    (work / _NAME).write_text(text)


def load(work: Path) -> Plan:
    """Read it back."""
    fields: dict[str, Any] = json.loads((work / _NAME).read_text())
    for name in ("stdin", "output"):
        fields[name] = None if fields[name] is None else Path(fields[name])
    for name in ("writable", "direct"):
        fields[name] = tuple(Path(path) for path in fields[name])
    for name in ("command", "mechanisms"):
        fields[name] = tuple(fields[name])
    fields["limits"] = Limits(**fields["limits"])
    fields["guards"] = Guards(**fields["guards"])
    return Plan(**fields)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())
