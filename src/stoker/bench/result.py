"""A benchmark's result and its file: `<name>_<hardware>_<date>.json`, written whole or not at all.

`figures` hold the medians, `runs` every repeat. Peers stand in the same file, from the same run, as
`…_peer_<name>`. Every ratio is our rate over the other's: higher is better.
"""

import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date as calendar
from pathlib import Path
from typing import Any

import torch

from stoker import __version__
from stoker.errors import NotPermitted, UsageError

SCHEMA = 1
_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Origin:
    """When a part of a benchmark was measured, at which commit and with what."""

    date: str
    commit: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark measured on one kind of hardware.

    `parts` tells of each part where it comes from, for benchmarks whose parts are measured apart.
    """

    bench: str
    hardware: str
    figures: Mapping[str, float]
    runs: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str]
    commit: str | None = None
    date: str = field(default_factory=lambda: calendar.today().isoformat())
    parts: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Where it is kept, under the folder of results."""
        return f"{self.bench}_{self.hardware}_{self.date}.json"

    def to_json(self) -> dict[str, Any]:
        """The result as its file has it."""
        value = asdict(self)
        names = ["bench", "hardware", "date", "commit", "versions", "figures", "runs"]
        if self.parts:
            names.insert(names.index("versions"), "parts")
        return {"schema": SCHEMA, **{name: value[name] for name in names}}


def write_result(result: Result, folder: Path) -> Path:
    """Put the result's file into the folder. A second run on the same day replaces the first."""
    path = folder / result.file_name
    # A figure to a line, a run to a line: a diff between two files can be read.
    value = result.to_json()
    runs = ",\n  ".join(json.dumps(run) for run in value.pop("runs"))
    text = json.dumps(value, indent=1)[:-2] + f',\n "runs": [\n  {runs}\n ]\n}}\n'
    write_text(path, text)
    return path


def write_text(path: Path, text: str) -> None:
    """Put a file there whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        raise NotPermitted(f"cannot write {path}: {error.strerror}; say where with --out DIR") from error


def read_result(path: Path) -> Result:
    """Read a result's file back."""
    try:
        value = json.loads(path.read_text())
        schema = value.pop("schema")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a benchmark's result ({error}): measure again, or remove it"
        ) from error
    if schema != SCHEMA:
        raise UsageError(f"{path} has schema {schema!r}; this Stoker reads schema {SCHEMA}: measure again")
    try:
        parts = {part: Origin(**told) for part, told in value.pop("parts", {}).items()}
        return Result(parts=parts, **value)
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a benchmark's result ({error}): measure again, or remove it"
        ) from error


def newest_results(bench: str, folder: Path) -> list[Result]:
    """The newest result of each kind of hardware, by hardware."""
    newest: dict[str, Path] = {}
    for path in sorted(folder.glob(f"{bench}_*_????-??-??.json")):  # dates sort as they follow each other
        hardware = path.stem.removeprefix(f"{bench}_").rsplit("_", 1)[0]
        newest[hardware] = path
    return [read_result(newest[hardware]) for hardware in sorted(newest)]


def hardware_word(device: str) -> str:
    """`cpu`, or the accelerator's model in one word: "NVIDIA H200" is `h200`."""
    return "cpu" if device == "cpu" else word_of(torch.cuda.get_device_name(device))


def word_of(name: str) -> str:
    """The first word of a device's name that has a digit in it: a model, not a maker."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return next((word for word in words if any(c.isdigit() for c in word)), "-".join(words) or "gpu")


def versions_here(**more: str) -> dict[str, str]:
    """What was measured with."""
    found = {
        "stoker": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found | more


def commit_here() -> str | None:
    """The commit of the source this runs from, marked where files differ from it; None outside git."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", str(_HERE.parent))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-changed" if changed else head


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_HERE), *words], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()
