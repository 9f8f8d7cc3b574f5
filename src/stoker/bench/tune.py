"""`stoker bench tune`: a search beside the whole grid, on slow scripts of the ward.

For each case a grid of settings is measured point by point, then `stoker tune` searches it. What it found and
the grid's best few points are then measured again in turns: the best of many points measured once is too good
to be true. Every point leaves a file, so a benchmark that was broken off goes on, elsewhere too where the
folder of that (`--state`) is taken along; `--stop-after` breaks it off between two points. What was measured
at one commit is not mixed with what was at another: each has a folder of its own in there. A case that is
measured again (`--part CASE`) takes the place of what the newest result has of it.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch

from stoker.bench import joined
from stoker.bench.catalogue import Options
from stoker.bench.page import origin, table
from stoker.bench.result import Origin, Result, commit_here, hardware_word, versions_here
from stoker.bench.tune_cases import CONTESTS, Contest, Settings
from stoker.errors import BenchFailed, UsageError
from stoker.tune.comparison import Ratio, compare, spread_of
from stoker.ward.catalogue import Prepared, injectable, prepared
from stoker.ward.catalogue import cases as all_cases
from stoker.watch.record import write_whole

SHARE = 0.97
MOST_TRIALS = 12
_TRIAL_SECONDS = 3.0
# For a process beyond what it is thought to take.
_PATIENCE = 240.0
# What a point takes where it is compiled first, and a search beyond its budget: its start and its report.
_POINT_SECONDS, _SEARCH_MORE = 30.0, 10.0


def measure(options: Options) -> Iterator[Result]:
    """Search and grid of each case; a result for each device."""
    end = None if options.stop_after is None else time.monotonic() + options.stop_after
    commit = options.commit or commit_here()
    state = options.state or Path(".stoker/bench/tune")
    folder = state / (commit or "unknown")
    for device, contests in chosen(options).items():
        runs, left, parts = [], [], {}
        for contest in contests:
            try:
                runs.append(_hold(contest, folder / contest.case, end))
                parts[contest.case] = Origin(
                    date=date.today().isoformat(), commit=commit, versions=versions_here()
                )
            except (_NotNow, BenchFailed) as missing:  # the others are measured all the same
                left.append(f"{contest.case} ({missing})")
        if runs:
            yield Result(
                bench="tune",
                hardware=hardware_word(device),
                figures=figures_of(runs),
                runs=runs,
                versions=versions_here(),
                commit=commit,
                parts=parts,
            )
        if left:
            raise BenchFailed(
                f"not measured whole: {', '.join(left)}. What to do: run it again with --state {state}, "
                "where it goes on"
            )


def chosen(options: Options) -> dict[str, Sequence[Contest]]:
    """The contests that are asked for, by the device that they are of."""
    if options.device not in ("all", *CONTESTS):
        raise UsageError(f"no device {options.device!r}: take one of all, {', '.join(CONTESTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device here: take --device cpu")
    here = [name for name in CONTESTS if name != "cuda" or torch.cuda.is_available()]
    devices = here if options.device == "all" else [options.device]
    known = {contest.case: contest for device in devices for contest in CONTESTS[device]}
    if unknown := [name for name in options.parts if name not in known]:
        raise UsageError(f"no case {', '.join(unknown)} with a grid; there are {', '.join(known)}")
    wanted = options.parts or tuple(known)
    found = {device: [one for one in CONTESTS[device] if one.case in wanted] for device in devices}
    return {device: contests for device, contests in found.items() if contests}


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


def join(new: Result, old: Result) -> Result:
    """With the cases that the old one has alone."""
    return joined.join(new, old, figures_of)


class _NotNow(Exception):
    """There is no time left for a piece of the work; the message says for which."""


def _hold(contest: Contest, folder: Path, end: float | None) -> dict[str, Any]:
    case = {case.id: case for case in all_cases()}[contest.case]
    if reason := injectable(case):
        raise UsageError(f"{contest.case} cannot be run here: {reason}")
    with ExitStack() as standing:
        # Made ready for the first piece that is missing: of a case that is whole, nothing is.
        ready = cache(lambda: standing.enter_context(prepared(case)))
        return {
            "part": contest.case,
            "finder": contest.finder,
            **contend(contest, _Work(ready=ready, folder=folder, end=end)),
        }


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The pieces of one contest: each is measured once, if there is time for it, and leaves a file."""

    ready: Callable[[], Prepared]
    folder: Path
    end: float | None

    def point(self, settings: Settings, turn: int) -> Mapping[str, Any]:
        """A trial of these settings; its `rate` is None where it could not be measured."""
        words = ["-".join(f"{key}{value}" for key, value in sorted(settings.items())) or "plain", str(turn)]
        return self._piece(
            "-".join(words),
            _POINT_SECONDS,
            ("stoker.ward.trying", json.dumps(dict(settings)), str(_TRIAL_SECONDS)),
        )

    def search(self, contest: Contest) -> Mapping[str, Any]:
        """What `stoker tune --json` says."""
        allowed = [word for kind in contest.allow for word in ("--allow", kind)]
        finder = () if contest.finder is None else (contest.finder,)
        words = ("stoker", "tune", *finder, "--json", "--budget", f"{contest.budget:g}", *allowed)
        return self._piece("search", contest.budget + _SEARCH_MORE, words)

    def _piece(self, name: str, seconds: float, words: Sequence[str]) -> Mapping[str, Any]:
        path = self.folder / f"{name}.json"
        if not path.exists():
            if self.end is not None and time.monotonic() + seconds > self.end:
                raise _NotNow(f"{name} may take {seconds:g} s")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, _run(self.ready(), seconds + _PATIENCE, *words))
        told: Mapping[str, Any] = json.loads(path.read_text())
        return told


def contend(contest: Contest, work: _Work) -> dict[str, Any]:
    """The grid, the search, then what each found in turns."""
    once = [(settings, work.point(settings, 0)) for settings in contest.grid]
    ran = [(settings, told["rate"]) for settings, told in once if told["rate"] is not None]
    if not ran:
        raise BenchFailed(f"no point of the grid could be measured: see {work.folder}")
    best = sorted(ran, key=lambda one: one[1], reverse=True)[: contest.best]
    told = work.search(contest)
    again: dict[str, Settings] = {"search": told["settings"]}
    again |= {f"grid {at}": one for at, (one, _) in enumerate(best)}
    turns = [
        (name, work.point(settings, turn))
        for turn in range(1, contest.turns + 1)
        for name, settings in again.items()
    ]
    rates = {
        name: [point["rate"] for of, point in turns if of == name and point["rate"] is not None]
        for name in again
    }
    middle = {name: geometric_mean(found) for name, found in rates.items() if found}
    grid = [name for name in middle if name != "search"]
    if "search" not in middle or not grid:
        raise BenchFailed(f"{contest.case}: what was found could not be measured again: see {work.folder}")
    top = max(grid, key=lambda name: middle[name])
    noise = _interval(rates, top)
    return {
        "share": middle["search"] / middle[top],
        "share_low": noise.low,
        "share_high": noise.high,
        "trials": len(told["trials"]),
        "runs": told["runs"],
        "found": told["settings"],
        "grid_best": dict(again[top]),
        "rate": middle["search"],
        "rate_grid_best": middle[top],
        "rate_before": told["baseline"],
        "grid": [{**settings, "rate": point["rate"]} for settings, point in once],
        "rates": rates,
        "disturbed": sum(bool(point["disturbed"]) for _, point in (*once, *turns)),
        "tried": told["trials"],
        "not_tried": told["not_tried"],
        "stopped": told["stopped"],
    }


def _interval(rates: Mapping[str, Sequence[float]], top: str) -> Ratio:
    """Of the search's rate over that of the grid's best, by how much the turns of each point differ."""
    runs = {name: [(rate,) for rate in found] for name, found in rates.items() if found}
    return compare(runs[top], runs["search"], spread_of(runs))


def _run(ready: Prepared, most: float, module: str, *words: str) -> Mapping[str, Any]:
    try:
        done = subprocess.run(
            ready.command("-m", module, *words), env=ready.env, cwd=ready.cwd, capture_output=True, text=True,
            timeout=most, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{module} took longer than {most:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise BenchFailed(f"{module} ended with code {done.returncode}: {said[-1]}")
    told: Mapping[str, Any] = json.loads(done.stdout)
    return told


def page(results: Sequence[Result]) -> str:
    """What the search found beside the grid's best, a row a case."""
    parts = [
        "# A search beside the whole grid\n",
        "Slow scripts of the ward, each with a grid of settings. What `stoker tune` found and the grid's "
        "best points were measured again in turns; the share is the one's rate over the other's, with the "
        "90% interval that the turns leave. Of the grid the best of several counts, also if by luck. "
        f"The goal is {SHARE} in at most {MOST_TRIALS} trials; each is a change, of one run or more. "
        "With `--workers` only those and prefetch are looked for, and stand in the grid.\n",
        "`stoker bench tune`; rates are of samples, of steps where a script's samples cannot be counted\n",
    ]
    head = [
        "case",
        "share",
        "interval",
        "trials",
        "runs",
        "points",
        "rate before",
        "found",
        "grid's best",
        "found",
        "grid's best",
    ]
    for result in results:
        rows = [_row(run) for run in result.runs]
        parts += [f"## {result.hardware}\n", table(head, rows), origin(result) + "\n"]
    return "\n".join(parts)


def _row(run: Mapping[str, Any]) -> list[str]:
    rates = [f"{run[name]:,.0f}" for name in ("rate_before", "rate", "rate_grid_best")]
    counts = [str(run["trials"]), str(run["runs"]), str(len(run["grid"]))]
    share = [f"{run['share']:.3f}", f"{run['share_low']:.3f} to {run['share_high']:.3f}"]
    case = run["part"] if run.get("finder") is None else f"{run['part']}, {run['finder']}"
    return [case, *share, *counts, *rates, _words(run["found"]), _words(run["grid_best"])]


def _words(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it is"
