"""`stoker bench learning`: the four systems trained to their end, beside a rule that knows nothing.

Rates alone would be had by a training that learns nothing. Each system (`--part sar`) is trained by its own
task, on made data, in a process of its own; on a card all at once, since nothing is timed that is claimed.
`_floor` is what the rule gets on the samples to validate on, and the other figure what the best validation
of the training got there.

sar
    PSNR in dB of each of the three models on equal budgets (`--compare`), beside predicting the mean.
imagenet
    Top-1 of ResNet-50 from nothing, beside chance.
vesuvius
    Dice of the volume that was kept apart, beside calling every voxel a sheet.
heimdall
    The median error in metres, beside saying the middle of the square.

On a CPU the systems are small and take minutes. A part that takes longer than `--seconds` is ended, and told.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch

from stoker.bench import joined
from stoker.bench.catalogue import Options
from stoker.bench.children import run_child
from stoker.bench.learning_part import LESSONS
from stoker.bench.page import origin, table
from stoker.bench.result import Origin, Result, commit_here, hardware_word, versions_here
from stoker.errors import BenchFailed, UsageError

_INTRODUCTION = """\
# What the four systems learn

Each system trained on made data, beside a rule that knows nothing, on samples that were not trained on. Made
by `stoker bench learning`, whose module docstring tells the method; do not edit.
"""


def measure(options: Options) -> Iterator[Result]:
    """Train the parts that are asked for."""
    device = _device(options.device)
    parts = _parts(options.parts)
    commit = options.commit or commit_here()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as home:

        def trained(part: str) -> list[dict[str, Any]] | BenchFailed:
            try:
                return _train(part, Path(home), device, options.seconds)
            except BenchFailed as error:  # the others are trained all the same
                return error

        with ThreadPoolExecutor(len(parts) if device == "cuda" else 1) as pool:
            found = dict(zip(parts, pool.map(trained, parts), strict=True))
    failed = {part: one for part, one in found.items() if isinstance(one, BenchFailed)}
    runs = [run for one in found.values() if not isinstance(one, BenchFailed) for run in one]
    if runs:
        whole = Origin(date=date.today().isoformat(), commit=commit, versions=versions_here())
        yield Result(
            bench="learning",
            hardware=hardware_word(device),
            figures=figures_of(runs),
            runs=runs,
            versions=versions_here(),
            commit=commit,
            parts={part: whole for part in parts if part not in failed},
        )
    if failed:
        raise BenchFailed("; ".join(f"{part} was left out: {error}" for part, error in failed.items()))


def join(new: Result, old: Result) -> Result:
    """With the parts that the old one has alone."""
    return joined.join(new, old, figures_of)


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each training its figure, and of each system what a rule gets that knows nothing."""
    figures: dict[str, float] = {}
    for run in runs:
        name = f"{run['part']}_{run['metric']}"
        figures[f"{name}_{run['model']}"] = run["value"]
        figures[f"{name}_floor"] = run["floor"]
    return figures


def page(results: Sequence[Result]) -> str:
    """The benchmark's page in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(result) for result in results)])


def _section(result: Result) -> str:
    head = ["system", "model", "seen", "steps", "minutes", "figure", "reached", "knowing nothing"]
    rows = [
        [
            run["part"],
            run["model"],
            f"{run['samples']:,} samples",
            f"{run['steps']:,}",
            f"{run['seconds'] / 60:.1f}",
            f"{run['label']} ({'higher' if run['higher'] else 'lower'} is better)",
            f"{run['value']:,.{run['digits']}f}",
            f"{run['floor']:,.{run['digits']}f} ({run['rule']})",
        ]
        for run in result.runs
    ]
    words = [f"**{run['part']}**, {run['model']}: `{' '.join(run['words'])}`\n" for run in result.runs]
    return "\n".join(
        [f"## {result.hardware}, {result.date}\n", table(head, rows), *words, origin(result) + "\n"]
    )


def _train(part: str, home: Path, device: str, seconds: float) -> list[dict[str, Any]]:
    folder, out = home / part, home / f"{part}.json"
    folder.mkdir()
    words = [part, "--device", device, "--folder", str(folder), "--out", str(out)]
    run_child(
        [sys.executable, "-m", "stoker.bench.learning_part", *words],
        what=f"training {part}",
        log=home / f"{part}.log",
        timeout=seconds,
    )
    told: list[dict[str, Any]] = json.loads(out.read_text())["runs"]
    return told


def _device(asked: str) -> str:
    here = torch.cuda.is_available()
    if asked not in ("all", "cpu", "cuda"):
        raise UsageError(f"--device {asked}: systems are trained on cpu or cuda")
    if asked == "cuda" and not here:
        raise UsageError("--device cuda, but torch finds no CUDA device here: use --device cpu")
    return "cuda" if here and asked != "cpu" else "cpu"


def _parts(asked: Sequence[str]) -> list[str]:
    if unknown := [part for part in asked if part not in LESSONS]:
        raise UsageError(f"no part {unknown[0]!r} of learning: --part {', '.join(LESSONS)}")
    return list(asked) or list(LESSONS)
