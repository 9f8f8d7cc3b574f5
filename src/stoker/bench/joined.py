"""A result joined with an earlier one's parts that it has not: each keeps its date and commit. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoker.bench.result import Origin, Result

# Of more parts than this the names are left out, where they are most of all.
_MANY = 8
Figures = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, float]]


def join(new: Result, old: Result, figures_of: Figures, *, key: str = "part") -> Result:
    """The new result, and those parts of the old one that it has not measured; a run names its by the key."""
    kept = {part: one for part, one in origins_of(old, key).items() if part not in new.parts}
    if not kept:
        return new
    parts = {**kept, **new.parts}
    runs = [
        *(run for run in old.runs if run.get(key) in kept),
        *(run for run in new.runs if run.get(key) not in kept),
    ]
    return replace(
        new,
        parts=parts,
        runs=runs,
        figures={**new.figures, **figures_of(runs)},
        commit=commits_of(parts),
        versions=versions_of(parts),
    )


def origins_of(result: Result, key: str = "part") -> Mapping[str, Origin]:
    """Of each part that was measured, when, at which commit and with what."""
    if result.parts:
        return result.parts
    measured = [run[key] for run in result.runs if key in run and run.get("how") != "skipped"]
    whole = Origin(date=result.date, commit=result.commit, versions=result.versions)
    return dict.fromkeys(measured, whole)


def commits_of(parts: Mapping[str, Origin]) -> str | None:
    """The commit that all parts were measured at; where they differ, each with its date and its parts."""
    commits = {(one.commit, one.date) for one in parts.values()}
    if len(commits) == 1:
        return next(iter(commits))[0]
    told = {part: f"{(one.commit or 'unknown')[:12]} on {one.date}" for part, one in parts.items()}
    return _grouped(told)


def versions_of(parts: Mapping[str, Origin]) -> dict[str, str]:
    """What all parts were measured with; where they differ, which with which."""
    names = dict.fromkeys(name for one in parts.values() for name in one.versions)
    return {
        name: _grouped({part: one.versions[name] for part, one in parts.items() if name in one.versions})
        for name in names
    }


def _grouped(told: Mapping[str, str]) -> str:
    """The one text, or each with its parts in brackets; those of most may be the others."""
    parts: dict[str, list[str]] = {}
    for part, text in told.items():
        parts.setdefault(text, []).append(part)
    if len(parts) == 1:
        return next(iter(parts))
    most = max(parts, key=lambda text: len(parts[text]))
    if len(parts[most]) > _MANY:
        parts[most] = ["the others"]
        parts = {**{text: names for text, names in parts.items() if text != most}, most: parts[most]}
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in parts.items())
