"""The field note's own request body, as a Heimdall config.

{"job_name": "UHF Mixed", "config": {"dataset_ids": ["29b7…"], "batch_size": 256, "epochs": 1000,
 "learning_rate": 0.001, "preload_to_gpu": true, "accelerator": "auto"}}
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.errors import Problem

# The note's name of a setting, and where it is in the workload's config.
_NAMES = {
    "dataset_ids": ("dataset_ids",),
    "preload_to_gpu": ("preload_to_gpu",),
    "batch_size": ("train", "batch_size"),
    "epochs": ("train", "epochs"),
    "learning_rate": ("train", "optimizer", "lr"),
    "accelerator": ("train", "device"),
}
# Also in the note: it is not used where samples are held in memory, which they always are here.
_UNUSED = "num_workers"
_DEVICES = {"auto": "auto", "cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}


def is_note(body: Mapping[str, Any]) -> bool:
    """Whether a body is shaped like the note's."""
    return "job_name" in body and isinstance(body.get("config"), Mapping)


def translate(
    config: Mapping[str, Any], database: str | None
) -> tuple[dict[str, Any], tuple[str, ...], list[Problem]]:
    """The workload's config, what the sender should know, and what is none of the note's settings."""
    made: dict[str, Any] = {}
    notes: list[str] = []
    problems: list[Problem] = []
    for name, value in config.items():
        if name == _UNUSED:
            notes.append(f"{_UNUSED} is not used: samples are read once and held in memory")
        elif name not in _NAMES:
            allowed = (*_NAMES, _UNUSED)
            problems.append(Problem(field=f"config.{name}", text="no such setting", allowed=allowed))
        elif name == "accelerator" and (not isinstance(value, str) or value not in _DEVICES):
            text = f"it is {value!r:.200}"
            problems.append(Problem(field="config.accelerator", text=text, allowed=tuple(_DEVICES)))
        else:
            inner = made
            for word in _NAMES[name][:-1]:
                inner = inner.setdefault(word, {})
            inner[_NAMES[name][-1]] = _DEVICES[value] if name == "accelerator" else value
    ids = made.get("dataset_ids")
    if database is not None:
        made["database"] = database
    elif isinstance(ids, list) and len(ids) > 1:
        text = f"{len(ids)} datasets, and the server has no database (stoker serve --database URL): name one"
        problems.append(Problem(field="config.dataset_ids", text=text))
    elif isinstance(ids, list) and ids:
        made["made"] = {"id": ids[0]}
    return made, tuple(notes), problems


def in_its_words(problem: Problem) -> Problem:
    """A problem of the workload's config, by the note's name of the setting where it has one."""
    for name, place in (*_NAMES.items(), ("dataset_ids", ("made", "id"))):
        if problem.field == ".".join(("config", *place)):
            return replace(problem, field=f"config.{name}")
    return problem
