"""`stoker bench tune`: a search beside the whole grid, on slow scripts of the ward.

For each case a grid of workers and prefetch is measured point by point, then `stoker tune` searches it. What
it found and the grid's best few points are then measured again in turns: the best of many points measured
once is too good to be true. Every point leaves a file, so a benchmark that was broken off goes on.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from stoker.bench.catalogue import Options
from stoker.bench.page import origin, table
from stoker.bench.result import Result, commit_here, hardware_word, versions_here
from stoker.errors import BenchFailed, UsageError
from stoker.ward.catalogue import Prepared, injectable, prepared
from stoker.ward.catalogue import cases as all_cases
from stoker.watch.record import write_whole

# What a grid can cure, of every way in which loaders are slow.
CPU_CASES = (
    "too-few-workers-tunnel-2",
    "too-few-workers-tunnel-4",
    "too-few-workers-sounds",
    "too-few-workers-leaves",
    "no-overlap-text",
    "no-overlap-sounds",
    "storage-latency-bucket-far",
    "query-per-sample-parts-0",
    "query-per-sample-parts-2",
    "cpu-transform-leaves-3",
)
WORKERS, PREFETCH = (1, 2, 3, 4, 6, 8, 12), (1, 2, 4)
SHARE = 0.97
MOST_TRIALS = 12
# Of the grid's points, those that are measured again beside what the search found; and how often.
_BEST, _TURNS = 3, 3
_TRIAL_SECONDS = 3.0
_PATIENCE = 400.0


def measure(options: Options) -> Iterator[Result]:
    """Search and grid of each case; one result."""
    if options.device not in ("all", "cpu"):
        raise UsageError("bench tune measures on the CPU; the cases of a GPU are not in it yet")
    known = {case.id: case for case in all_cases()}
    names = options.parts or CPU_CASES
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no case {', '.join(unknown)}; `stoker ward --list` names them")
    commit = options.commit or commit_here()
    folder = Path(".stoker/bench/tune") / (commit or "unknown")[:12]
    runs = []
    for name in names:
        if reason := injectable(known[name]):
            raise UsageError(f"{name} cannot be run here: {reason}")
        with prepared(known[name]) as ready:
            runs.append({"case": name, **_contest(ready, folder / name)})
    yield Result(
        bench="tune",
        hardware=hardware_word("cpu"),
        figures=figures_of(runs),
        runs=runs,
        versions=versions_here(),
        commit=commit,
    )


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The worst and the middle of the cases, and the most that a search tried."""
    shares = [run["share"] for run in runs]
    return {
        "share_of_grid_best": min(shares),
        "share_of_grid_best_median": median(shares),
        "trials_max": max(run["trials"] for run in runs),
        "cases": len(runs),
        "cases_within_share": sum(share >= SHARE for share in shares),
    }


def _contest(ready: Prepared, folder: Path) -> dict[str, Any]:
    grid = [{"num_workers": w, "prefetch_factor": p} for w in WORKERS for p in PREFETCH]
    once = [(settings, _point(ready, settings, folder, 0)) for settings in grid]
    ran = [(settings, rate) for settings, rate in once if rate is not None]
    if not ran:
        raise BenchFailed(f"no point of the grid could be measured: see {folder}")
    best = sorted(ran, key=lambda one: one[1], reverse=True)[:_BEST]
    told = _search(ready, folder)
    again = {"search": told["settings"], **{f"grid {at}": one for at, (one, _) in enumerate(best)}}
    rates: dict[str, list[float]] = {name: [] for name in again}
    for turn in range(1, _TURNS + 1):
        for name, settings in again.items():
            rate = _point(ready, settings, folder, turn)
            if rate is not None:
                rates[name].append(rate)
    middle = {name: median(found) for name, found in rates.items() if found}
    top = max((name for name in middle if name != "search"), key=lambda name: middle[name])
    return {
        "share": middle["search"] / middle[top],
        "trials": len(told["trials"]),
        "runs": told["runs"],
        "found": told["settings"],
        "grid_best": again[top],
        "rate": middle["search"],
        "rate_grid_best": middle[top],
        "rate_before": told["baseline"],
        "grid": [{**settings, "rate": rate} for settings, rate in once],
        "rates": rates,
    }


def _point(ready: Prepared, settings: Mapping[str, Any], folder: Path, turn: int) -> float | None:
    """Samples a second; None where it could not be measured. From its file, if there is one."""
    name = "-".join(f"{key}{value}" for key, value in settings.items()) or "plain"
    path = folder / f"{name}-{turn}.json"
    if path.exists():
        told = json.loads(path.read_text())
    else:
        told = _run(ready, "stoker.ward.trying", json.dumps(dict(settings)), str(_TRIAL_SECONDS))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, told)
    rate: float | None = told["rate"]
    return rate


def _search(ready: Prepared, folder: Path) -> Mapping[str, Any]:
    path = folder / "search.json"
    if not path.exists():
        write_whole(path, _run(ready, "stoker", "tune", "--json", "--budget", "240"))
    told: Mapping[str, Any] = json.loads(path.read_text())
    return told


def _run(ready: Prepared, module: str, *words: str) -> Mapping[str, Any]:
    done = subprocess.run(
        ready.command("-m", module, *words), env=ready.env, cwd=ready.cwd, capture_output=True, text=True,
        timeout=_PATIENCE, check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise BenchFailed(f"{module} ended with code {done.returncode}: {said[-1]}")
    told: Mapping[str, Any] = json.loads(done.stdout)
    return told


def page(results: Sequence[Result]) -> str:
    """What the search found beside the grid's best, a row a case."""
    points = len(WORKERS) * len(PREFETCH)
    parts = [
        "# A search beside the whole grid\n",
        f"Slow scripts of the ward; the grid is {points} points of workers and prefetch. What `stoker tune` "
        "found and the grid's best points were measured again in turns; the share is the one's rate over the "
        f"other's. The goal is {SHARE} in at most {MOST_TRIALS} trials.\n",
        "`stoker bench tune`\n",
    ]
    for result in results:
        rows = [_row(run) for run in result.runs]
        head = ["case", "share", "trials", "samples/s before", "found", "grid's best", "found", "grid's best"]
        parts += [f"## {result.hardware}\n", table(head, rows), origin(result) + "\n"]
    return "\n".join(parts)


def _row(run: Mapping[str, Any]) -> list[str]:
    rates = [f"{run[name]:,.0f}" for name in ("rate_before", "rate", "rate_grid_best")]
    share = f"{run['share']:.3f}"
    return [run["case"], share, str(run["trials"]), *rates, _words(run["found"]), _words(run["grid_best"])]


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it is"
