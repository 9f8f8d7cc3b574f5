"""Checkpoints: folders that appear whole or not at all, checked by their checksums when they are read.

    checkpoints/
      step-000001200/     the newest so many, and the best
        model.safetensors   weights and buffers
        mean.safetensors    their running mean, where there is one
        state.pt            optimizer, scaler and generators: loads with weights_only
        state.json          step, feed position, sums, best, settings
        manifest.json       bytes and SHA-256 of the others; written last
      best.json           which of them is the best, and by what

Nothing that is read back can run code: safetensors, JSON, and torch.load with `weights_only`.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from stoker.errors import CheckpointBroken, TrainingFailed
from stoker.feed.whole_file import PART
from stoker.train.folder import write_json

SCHEMA = 1
_NAME = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_MODEL, _MEAN, _TENSORS, _PLAIN = "model.safetensors", "mean.safetensors", "state.pt", "state.json"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a training goes on from. `tensors` and `plain` hold nothing but tensors, numbers and text."""

    model: Mapping[str, Tensor]
    mean: Mapping[str, Tensor] | None
    tensors: Mapping[str, Any]
    plain: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The newest checkpoint that is whole, and what is wrong with each newer one, by its name."""

    folder: Path
    checkpoint: Checkpoint
    passed_over: Mapping[str, str] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one training, in one folder."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep

    def name_for(self, step: int) -> str:
        """A name that is still free: a step may be saved again, and nothing is ever written over."""
        name, again = f"step-{step:09}", 0
        while (self._folder / name).exists():
            again += 1
            name = f"step-{step:09}.{again}"
        return name

    def save(self, name: str, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint under a name of `name_for`; it is there when this returns, whatever happens."""
        part = self._folder / f"{PART}{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.mkdir()
            _write(part, checkpoint)
            part.rename(self._folder / name)
            _sync_folder(self._folder)
        except OSError as error:
            raise TrainingFailed(
                f"cannot save {self._folder / name}: {error}. Make room there, and go on from the one before "
                "it, which is whole"
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)  # renamed, if all went well
        return self._folder / name

    def mark_best(self, name: str, *, step: int, metric: str, value: float) -> None:
        """Say which one is the best so far."""
        told = {"schema": SCHEMA, "checkpoint": name, "step": step, "metric": metric, "value": value}
        write_json(self._folder / "best.json", told)

    def put_aside(self, name: str) -> Path:
        """Take a broken one out of the row; it stays there to be looked at, under another name."""
        aside = self._folder / f"broken-{secrets.token_hex(4)}-{name}"
        (self._folder / name).rename(aside)
        return aside

    def forget_best(self) -> None:
        """None is the best: the training went back to before the first validation."""
        (self._folder / "best.json").unlink(missing_ok=True)

    def prune(self, best: str | None) -> None:
        """Remove all but the newest so many and the best, and what a killed process left half written."""
        names = self.names()
        for name in names[self._keep :]:
            if name != best:
                _remove(self._folder / name)
        self.remove_parts()

    def remove_parts(self) -> None:
        """Remove what a killed process left half written; nobody else writes here."""
        for part in self._folder.glob(f"{PART}*"):
            if part.is_dir():
                _remove(part)

    def names(self) -> list[str]:
        """What is there, the newest first."""
        if not self._folder.is_dir():
            return []
        found = [
            (match, path.name) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))
        ]
        return [name for match, name in sorted(found, key=lambda one: _age(one[0]), reverse=True)]

    def read(self, name: str) -> Checkpoint:
        """A checkpoint, each of its bytes checked; CheckpointBroken where one is not as it was written."""
        return _read(self._folder / name)

    def find_last_good(self) -> Found | None:
        """The newest that is whole; None where there are none at all."""
        passed_over: dict[str, str] = {}
        for name in self.names():
            try:
                checkpoint = self.read(name)
            except CheckpointBroken as error:
                passed_over[name] = str(error)
                continue
            return Found(folder=self._folder / name, checkpoint=checkpoint, passed_over=passed_over)
        if passed_over:
            raise CheckpointBroken(
                f"none of the {len(passed_over)} checkpoints in {self._folder} is whole "
                f"({'; '.join(passed_over.values())}): put one back, or begin anew with --fresh"
            )
        return None


def read_weights(folder: Path, *, mean: bool = False) -> dict[str, Tensor]:
    """The weights of one checkpoint's folder, checked; their running mean if asked for and there."""
    checkpoint = _read(folder)
    return dict(checkpoint.mean if mean and checkpoint.mean is not None else checkpoint.model)


def _age(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2] or 0)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    from safetensors.torch import save

    # Written by Python's own files, so that a full disk is an OSError: safetensors and torch would tell of it
    # by errors of their own.
    (folder / _MODEL).write_bytes(save(_plain_tensors(checkpoint.model)))
    if checkpoint.mean is not None:
        (folder / _MEAN).write_bytes(save(_plain_tensors(checkpoint.mean)))
    _save_tensors(folder / _TENSORS, dict(checkpoint.tensors))
    (folder / _PLAIN).write_text(json.dumps({"schema": SCHEMA, **checkpoint.plain}))
    written = {path.name: _digest(path) for path in _files(folder)}
    (folder / _MANIFEST).write_text(json.dumps({"schema": SCHEMA, "files": written}, indent=1))
    for path in _files(folder):
        _sync(path)
    _sync_folder(folder)


class _Noting:
    """A file as torch.save writes to it; remembers what went wrong with it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """All of it."""
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """What is still in memory."""
        self._file.flush()


def _save_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """By torch.save. Where a write fails, that closes its archive all the same, and tells of that alone."""
    with path.open("wb") as file:
        noting = _Noting(file)
        try:
            torch.save(tensors, cast(BinaryIO, noting))  # it writes and flushes, no more
        except RuntimeError as error:
            if noting.error is None:
                raise
            raise noting.error from error


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise TrainingFailed(
            f"cannot remove {folder}: {error}. Remove it by hand; the same command goes on from the last "
            "checkpoint, which is whole"
        ) from error


def _plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the host, in rows, each with memory of its own: tied weights are written twice and read as one."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }


def _read(folder: Path) -> Checkpoint:
    from safetensors.torch import load_file

    _check(folder)
    plain = json.loads((folder / _PLAIN).read_text())
    if plain.pop("schema", None) != SCHEMA:
        raise CheckpointBroken(f"{folder.name}: written by another version; use that, or begin anew")
    return Checkpoint(
        model=load_file(folder / _MODEL),
        mean=load_file(folder / _MEAN) if (folder / _MEAN).exists() else None,
        tensors=torch.load(folder / _TENSORS, map_location="cpu", weights_only=True),
        plain=plain,
    )


def _check(folder: Path) -> None:
    try:
        told = json.loads((folder / _MANIFEST).read_text())["files"]
        for name in (_MODEL, _TENSORS, _PLAIN):
            if name not in told:
                raise CheckpointBroken(f"{folder.name}: {_MANIFEST} does not name {name}")
        for name, expected in told.items():
            found = _digest(folder / name)
            if found != expected:
                raise CheckpointBroken(
                    f"{folder.name}: {name} is not as it was written "
                    f"({found['bytes']} bytes for {expected['bytes']}, or other ones)"
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointBroken):
            raise
        raise CheckpointBroken(f"{folder.name}: {type(error).__name__}: {error}") from error


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.iterdir())


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
