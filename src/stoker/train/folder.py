"""A training's folder: one process at a time, settings beside results, nothing older written over."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from stoker.errors import NotPermitted, TrainingFailed, UsageError
from stoker.feed.whole_file import whole_file

if sys.platform != "win32":
    import fcntl

CHECKPOINTS = "checkpoints"
_LOCK = ".lock"
_OF_A_RUN = (
    CHECKPOINTS,
    "metrics.jsonl",
    "tensorboard",
    "config.json",
    "begun.json",
    "result.json",
    "wandb",
    "wandb.id",
    "mlflow.id",
)
# Locks that this process holds.
_HELD: set[IO[str]] = set()


def _leave_to_parent() -> None:
    """A forked reader shares the parent's locks: it would hold a folder on after the parent was killed."""
    for lock in _HELD:
        lock.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@contextlib.contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Nobody else trains into the folder inside the block; a killed process holds it no longer."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / _LOCK).open("w")
    except OSError as error:
        raise NotPermitted(
            f"cannot train into {folder}: {error.strerror or error}; choose another folder with --out"
        ) from error
    with opened as lock:
        if sys.platform != "win32":
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(
                    f"another process trains into {folder}: wait for it, or choose another folder with --out"
                ) from error
        _HELD.add(lock)
        try:
            yield
        finally:
            _HELD.discard(lock)


def is_taken(folder: Path) -> bool:
    """Whether a process trains into the folder now, on this machine or, on shared storage, on another."""
    try:
        lock = (folder / _LOCK).open("r+")
    except FileNotFoundError:
        return False
    with lock:
        if sys.platform != "win32":
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False


def put_aside(folder: Path) -> Path | None:
    """Move an older training of this folder into `before-1`, `before-2`, …; where to, if there was one."""
    there = [folder / name for name in _OF_A_RUN if (folder / name).exists()]
    there += [path for path in _pictures(folder) if path.exists()]
    if not there:
        return None
    number = 1
    while (folder / f"before-{number}").exists():
        number += 1
    aside = folder / f"before-{number}"
    aside.mkdir()
    for path in there:
        path.rename(aside / path.name)
    return aside


def _pictures(folder: Path) -> list[Path]:
    """Those that the older training drew there."""
    try:
        told = json.loads((folder / "result.json").read_text())
        drawn, where = [Path(name) for name in told["pictures"]], Path(told["folder"])
    except (OSError, ValueError, KeyError, TypeError):  # it did not come to its end, or the file was harmed
        return []
    return [folder / path.name for path in drawn if path.parent == where]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What a disk refuses in the block is told with what was to be written."""
    try:
        yield
    except OSError as error:
        raise TrainingFailed(
            f"cannot write {path}: {error}. Make room there; the same command goes on from the last "
            "checkpoint"
        ) from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """A file of JSON that appears whole or not at all."""
    with writing(path), whole_file(path) as out:
        out.write(json.dumps(values, indent=1).encode())
