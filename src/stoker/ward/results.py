"""The rounds' result files: one a case, each with what it was made by; those of one version are joined.

A file says the version, the hardware, the packages and the day of its result, so that results can be carried
from the machine that made them to the one that joins them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from stoker.bench.result import write_text
from stoker.errors import UsageError
from stoker.ward.case import NO_ALARM, Case

# Why a case has no verdict that could have had one: the time was over.
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the doctor said of a case."""

    case: str
    truth: str
    also: tuple[str, ...]
    said: str | None
    said_also: tuple[str, ...]
    seconds: float | None
    # Why there is no verdict: not injectable here, not run, or what went wrong.
    reason: str | None = None
    # The change that must be proposed first, where the case tells one, and what was.
    cure: str | None = None
    said_cure: str | None = None

    @property
    def right(self) -> bool | None:
        """Whether the cause was named first, and for its reason; None where the case was not shown."""
        if self.said is None:
            return None if self.seconds is None else False
        if self.truth in NO_ALARM:
            return self.said in NO_ALARM
        return self.said == self.truth and self.cure in (None, self.said_cure)

    @property
    def second_named(self) -> bool | None:
        """Whether what else was put there was named too; None where nothing was, or it was not shown."""
        if self.right is None or not self.also:
            return None
        return {*self.also} <= {self.said, *self.said_also}

    def to_json(self) -> dict[str, Any]:
        """The result as its file holds it."""
        return {**vars(self), "also": list(self.also), "said_also": list(self.said_also), "right": self.right}


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What results were made by: the version judged, the hardware, the packages, the day."""

    version: str
    hardware: str
    versions: Mapping[str, str]
    date: str


def unseen(case: Case, reason: str, *, seconds: float | None = None) -> Seen:
    """A case without a verdict; with seconds where it was shown."""
    return Seen(
        case=case.id, truth=case.cause, also=case.also, said=None, said_also=(), seconds=seconds,
        reason=reason, cure=case.cure,
    )  # fmt: skip


def keep(folder: Path, seen: Seen, stamp: Stamp) -> None:
    """Write a case's result, whole or not at all: rounds are ended from outside too."""
    text = json.dumps({**asdict(stamp), **seen.to_json()}, indent=1) + "\n"
    write_text(folder / f"{seen.case}.json", text)


def kept(folder: Path, case: Case, stamp: Stamp) -> Seen | None:
    """A case's result for this version and machine, if there is one; what could not be run may be by now."""
    path = folder / f"{case.id}.json"
    if not path.exists():
        return None
    value = _read(path)
    if (value["version"], value.get("hardware")) != (stamp.version, stamp.hardware):
        return None
    seen = _seen(value)
    return None if seen.right is None else seen


def join(
    folder: Path, cases: Iterable[Case], *, version: str | None, hardware: str | None
) -> tuple[Stamp, list[Seen]]:
    """The results of one version among a folder's files, in the cases' order; a case without one is not run.

    `version` is needed where the files are of several, `hardware` where they do not say it.
    """
    values = {path: _read(path) for path in sorted(folder.glob("*.json"))}
    known = {case.id: case for case in cases}
    values = {path: value for path, value in values.items() if value["case"] in known}
    found = Counter(str(value["version"]) for value in values.values())
    if not found:
        raise UsageError(f"no results of these cases in {folder}: give the folder that holds CASE.json files")
    if version is None and len(found) > 1:
        each = ", ".join(f"{name} ({count})" for name, count in found.most_common())
        raise UsageError(f"results of several versions in {folder}: {each}; say which with --commit VERSION")
    version = version or next(iter(found))
    if version not in found:
        raise UsageError(f"no results of version {version} in {folder}; there are {', '.join(found)}")
    chosen = {path: value for path, value in values.items() if value["version"] == version}
    seen = {value["case"]: _seen(value) for value in chosen.values()}
    stamp = _stamp(chosen, version, hardware)
    return stamp, [seen.get(name) or unseen(case, NOT_RUN) for name, case in known.items()]


def _stamp(chosen: Mapping[Path, Mapping[str, Any]], version: str, hardware: str | None) -> Stamp:
    told = {str(value["hardware"]) for value in chosen.values() if "hardware" in value}
    told |= {hardware} if hardware is not None else set()
    if len(told) != 1:
        what = f"are of {', '.join(sorted(told))}" if told else "do not say the hardware"
        raise UsageError(f"the results {what}: give those of one machine, and --hardware WORD if need be")
    # The files of one version come from one kind of machine, whose packages stay; the newest tells.
    newest = max(chosen, key=lambda path: (chosen[path].get("date", ""), path.stat().st_mtime))
    day = datetime.fromtimestamp(newest.stat().st_mtime).date().isoformat()
    return Stamp(
        version=version,
        hardware=told.pop(),
        versions=chosen[newest].get("versions", {}),
        date=chosen[newest].get("date", day),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
        if {"version", "case", "truth", "said"} <= value.keys():
            return dict(value)
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is not the result of a case ({error}): remove it") from error
    raise UsageError(f"{path} is not the result of a case: give the folder that holds CASE.json files alone")


def _seen(value: Mapping[str, Any]) -> Seen:
    return Seen(
        case=value["case"],
        truth=value["truth"],
        also=tuple(value["also"]),
        said=value["said"],
        said_also=tuple(value["said_also"]),
        seconds=value["seconds"],
        reason=value["reason"],
        cure=value.get("cure"),
        said_cure=value.get("said_cure"),
    )
