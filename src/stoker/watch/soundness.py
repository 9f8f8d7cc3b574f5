"""Whether what stands in a record is what a record holds: types and finite numbers. Pure.

A record is a file, and may be changed by hand, by another program or by a failing disk: what is wrong is
found where it is read, with the line, and not in the middle of a sum.
"""

from collections.abc import Callable, Mapping
from math import inf
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from stoker.watch.phases import Batch, Meeting, Step

# Counters of a resources line, by how their names end.
_COUNTERS = ("_s", "_us", "_bytes", "_periods")
# Of a loader's description, by which it is known and judged.
_OF_LOADER = ("fed", "num_workers", "batch_size", "prefetch_factor", "epochs", "length")


def is_number(value: Any) -> bool:
    """Whether it is a finite number; a truth value is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -inf < value < inf


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number(count) for count in value.values())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _checks(kind: type) -> dict[str, tuple[Callable[[Any], bool], bool]]:
    """For each field: the check of its value, and whether there may be none."""
    found: dict[str, tuple[Callable[[Any], bool], bool]] = {}
    for name, hint in get_type_hints(kind).items():
        kinds = get_args(hint) if get_origin(hint) is not Mapping else (hint,)
        kinds = kinds or (hint,)
        if str in kinds:
            check = _is_text
        elif int in kinds or float in kinds:
            check = is_number
        else:
            check = _are_counts if name == "calls" else _is_mapping
        found[name] = check, NoneType in kinds
    return found


FIELDS: dict[type, dict[str, tuple[Callable[[Any], bool], bool]]] = {
    kind: _checks(kind) for kind in (Step, Batch, Meeting)
}


def fault_in(kind: type, line: Mapping[str, Any]) -> str | None:
    """What is wrong with a line's values for a step, a batch or a meeting; of fields that are there."""
    checks = FIELDS[kind]
    for name, value in line.items():
        if name in checks:
            check, none = checks[name]
            if not (check(value) or (none and value is None)):
                return f"has {name}: {value!r}"
    return None


def fault_in_counters(line: Mapping[str, Any]) -> str | None:
    """What is wrong with a line of counters: of the process, and of each of its workers."""
    workers = line.get("processes")
    if not (workers is None or (isinstance(workers, list) and all(_is_worker(one) for one in workers))):
        return f"has processes: {workers!r:.60}"
    for part in (line, *(workers or ())):
        for name, value in part.items():
            if name.endswith(_COUNTERS) and not (value is None or is_number(value)):
                return f"has {name}: {value!r}"
    return None


def _is_worker(value: Any) -> bool:
    return isinstance(value, dict) and is_number(value.get("pid"))


def fault_in_run(about: Mapping[str, Any]) -> str | None:
    """What is wrong with the description of a run."""
    facts = about.get("facts")
    parts = {"facts": facts, "facts.host": facts.get("host") if isinstance(facts, dict) else None}
    parts |= {name: about.get(name) for name in ("versions", "settings")}
    return _not_mappings(parts)


def fault_in_rank(about: Mapping[str, Any]) -> str | None:
    """What is wrong with the description of a rank."""
    loaders = about.get("loaders")
    if not (loaders is None or (isinstance(loaders, list) and all(_is_loader(one) for one in loaders))):
        return f"has loaders: {loaders!r:.60}"
    return _not_mappings({"overhead": about.get("overhead")})


def _is_loader(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_number(value.get("id"))
        and _is_text(value.get("name"))
        and all(value.get(name) is None or is_number(value[name]) for name in _OF_LOADER)
    )


def _not_mappings(parts: Mapping[str, Any]) -> str | None:
    wrong = [name for name, value in parts.items() if not (value is None or isinstance(value, dict))]
    return f"has {wrong[0]}: {parts[wrong[0]]!r:.60}" if wrong else None
