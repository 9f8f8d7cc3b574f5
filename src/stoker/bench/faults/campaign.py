"""The campaign: every row so many times, one trial after the other, each kept when it is over."""

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import torch

from stoker.bench import joined
from stoker.bench.catalogue import Options
from stoker.bench.children import say
from stoker.bench.faults.disks import take_own_mounts
from stoker.bench.faults.judge import OUTCOMES, Seen, judge
from stoker.bench.faults.row import Row
from stoker.bench.faults.scene import Fell, Scene
from stoker.bench.faults.services import Services
from stoker.bench.result import Origin, Result, commit_here, hardware_word, versions_here
from stoker.errors import BenchFailed, StokerError, UsageError
from stoker.ward import needs
from stoker.watch.record import write_whole

SEED = 8
_STATE = Path(".stoker/bench/faults")


def measure(options: Options) -> Iterator[Result]:
    """All rows, or those named; one result of what was tried. BenchFailed where that is not all."""
    from stoker.bench.faults.rows import ALL

    rows = chosen(ALL, options.parts)
    end = None if options.stop_after is None else time.monotonic() + options.stop_after
    commit = options.commit or commit_here()
    state = options.state or _STATE
    folder = state / (commit or "unknown")
    lacks = {row.name: why for row in rows if (why := lacking(row)) is not None}
    open_rows = _try_all([row for row in rows if row.name not in lacks], folder, end)
    runs = [run for row in rows for run in kept(row, folder)]
    runs += [{"row": name, "not_run": why} for name, why in lacks.items()]
    # Of a row that was not tried as often as it should be, what is known from before stays.
    here = versions_here(cores=str(len(os.sched_getaffinity(0))))
    whole = Origin(date=date.today().isoformat(), commit=commit, versions=here)
    yield Result(
        bench="faults",
        hardware=hardware_word("cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu"),
        figures=figures_of(runs),
        runs=runs,
        versions=here,
        commit=commit,
        parts={row.name: whole for row in rows if len(kept(row, folder)) == row.times},
    )
    if open_rows:
        raise BenchFailed(
            f"not tried as often as it should be: {', '.join(open_rows)}. What to do: run it again with "
            f"--state {state}, where it goes on"
        )


def join(new: Result, old: Result) -> Result:
    """With the rows that the old one has alone."""
    return joined.join(new, old, figures_of, key="row")


def chosen(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows that are asked for."""
    known = {row.name for row in rows}
    if unknown := [name for name in names if name not in known]:
        told = ", ".join(sorted(known))
        raise UsageError(f"no row {', '.join(unknown)} of bench faults; there are: {told}")
    return [row for row in rows if not names or row.name in names]


def lacking(row: Row) -> str | None:
    """Why this machine cannot run a row; None where it can."""
    for need in row.needs:
        why = take_own_mounts() if need == "mounts" else needs.reason_of(need)
        if why is not None:
            return why
    return None


def kept(row: Row, folder: Path) -> list[dict[str, Any]]:
    """What is known of a row's trials."""
    return [json.loads(path.read_text()) for path in sorted((folder / row.name).glob("*.json"))]


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How many trials came to what, over all rows; what was counted, and how much of it was found."""
    tried = [run for run in runs if "outcome" in run]
    outcomes = Counter(run["outcome"] for run in tried)
    rows = {run["row"] for run in tried}
    broken = {run["row"] for run in tried if not run["held"]}
    figures: dict[str, float] = {
        "faults_rows": len(rows),
        "faults_rows_held": len(rows - broken),
        "faults_rows_not_run": len({run["row"] for run in runs if "not_run" in run}),
        "faults_trials": len(tried),
        **{f"faults_{name}": outcomes[name] for name in OUTCOMES},
    }
    for what in sorted({what for run in tried for what in run["counts"]}):
        both = [run["counts"][what] for run in tried if what in run["counts"]]
        word = what.replace(" ", "_")
        figures[f"counted_{word}"] = sum(expected for expected, _ in both)
        figures[f"found_{word}"] = sum(found for _, found in both)
    return figures


def _try_all(rows: Sequence[Row], folder: Path, end: float | None) -> list[str]:
    """Hold the trials that are missing; the rows that there was no time for."""
    if not rows:
        return []
    take_own_mounts()  # also where no row needs it: what is left in shared memory is then ours
    missing = []
    # Short, because sockets are made below it, whose paths may have 107 bytes.
    work = Path(tempfile.mkdtemp(prefix="sf-"))
    try:
        with Services(work / "s") as services:
            for row in rows:
                for turn in range(row.times):
                    path = folder / row.name / f"{turn:03}.json"
                    if path.exists():
                        continue
                    if end is not None and time.monotonic() + row.seconds > end:
                        missing.append(row.name)
                        break
                    path.parent.mkdir(parents=True, exist_ok=True)
                    try:
                        write_whole(path, try_once(row, turn, work / "t", services))
                    except (BenchFailed, OSError, psutil.Error) as error:
                        # Of the trial's making, and no word on Stoker: tried again when it is run again.
                        missing.append(f"{row.name} ({type(error).__name__}: {error})")
                        break
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return missing


def try_once(row: Row, turn: int, folder: Path, services: Services) -> dict[str, Any]:
    """One trial, judged."""
    began = time.monotonic()
    with Scene(folder, f"{SEED} {row.name} {turn}", services) as scene:
        try:
            seen = row.act(scene)
        except Fell as fell:
            seen = Seen(ended=(fell.ended,), left=scene.left())
        except BenchFailed:
            raise
        except StokerError as error:  # what Stoker has kept cannot be read back
            seen = Seen(ended=(), counts={"kept and read back": (1, 0)}, note=str(error))
    judged = judge(seen)
    is_held = judged.outcome in row.good or judged.outcome == "missed"
    say(f"{row.name} {turn + 1}/{row.times}: {judged.outcome}{'' if is_held else f' ({judged.why})'}")
    with suppress(OSError):
        folder.rmdir()
    return {
        "row": row.name,
        "turn": turn,
        **judged.to_json(),
        "held": is_held,
        "note": seen.note,
        "counts": {what: list(both) for what, both in seen.counts.items()},
        "seconds": round(time.monotonic() - began, 2),
    }
