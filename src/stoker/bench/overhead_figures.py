"""What the stretches of `stoker bench overhead` come to: its figures and its page. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from stoker.bench.page import number, origin, table
from stoker.bench.result import Result
from stoker.bench.turns import as_figures, differences, interval

BARE, OBSERVED = "bare", "observed"
PEERS = ("traceml", "traceml_manual")
HEADLINE = "10ms"
_PARTS = ("training_thread", "other_threads", "workers", "beside")


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Every figure that these runs give, the headline first. What was not measured is not there."""
    sizes = list(dict.fromkeys(run["size"] for run in runs if "size" in run))
    by_size: dict[str, float] = {}
    for size in sizes:
        of_size = [run for run in runs if run.get("size") == size]
        by_size |= _toggled(size, [run for run in of_size if run["how"] == "toggle"])
        by_size |= _by_process(size, [run for run in of_size if run["how"] == "process"])
    head = HEADLINE if HEADLINE in sizes else sizes[0]
    headline = {}
    for key in ("us_per_step", *(f"us_per_step_peer_{peer}" for peer in PEERS)):
        for end in ("", "_low", "_high"):
            if f"{key}_{head}{end}" in by_size:
                headline[f"{key}{end}"] = by_size[f"{key}_{head}{end}"]
    return {name: round(value, 3) for name, value in (headline | by_size).items()}


def _toggled(size: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Stoker against itself switched off."""
    bare = _bare(runs)
    if bare is None:
        return {}
    found = {f"bare_ms_{size}": bare * 1e3, f"stretches_{size}": float(len(runs))}
    steps = differences(_per_step(runs, "seconds"), BARE, OBSERVED)
    found |= as_figures(f"us_per_step_{size}", interval([step * 1e6 for step in steps]))
    found |= as_figures(f"percent_at_{size}", interval([step / bare * 100 for step in steps]))
    others = [run["others_cores"] for run in runs if run.get("others_cores") is not None]
    if others:
        found[f"others_cores_{size}"] = median(others)
    for part in _PARTS:
        cpu = differences(_per_step(runs, f"cpu_{part}"), BARE, OBSERVED)
        if cpu:
            found[f"cpu_us_{part}_{size}"] = median(cpu) * 1e6
    return found


def _by_process(size: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Stoker and the peers, each in processes of their own."""
    bare = _bare(runs)
    if bare is None:
        return {}
    turns = _per_step(runs, "seconds")
    found = {f"bare_ms_by_process_{size}": bare * 1e3}
    cost: dict[str, float] = {}
    for kind, label in {OBSERVED: "by_process", **{peer: f"peer_{peer}" for peer in PEERS}}.items():
        steps = differences(turns, BARE, kind)
        if not steps:
            continue
        cost[kind] = median(steps)
        found |= as_figures(f"us_per_step_{label}_{size}", interval([step * 1e6 for step in steps]))
        found[f"percent_{label}_at_{size}"] = cost[kind] / bare * 100
    for peer in PEERS:
        if peer in cost and OBSERVED in cost:
            found[f"rate_over_peer_{peer}_{size}"] = (bare + cost[peer]) / (bare + cost[OBSERVED])
    return found


def _per_step(runs: Sequence[Mapping[str, Any]], key: str) -> list[tuple[str, float]]:
    """(kind, seconds a step) in the order in which they were measured, without those that lack it."""
    return [(run["kind"], run[key] / run["steps"]) for run in runs if run.get(key) is not None]


def _bare(runs: Sequence[Mapping[str, Any]]) -> float | None:
    bare = [value for kind, value in _per_step(runs, "seconds") if kind == BARE]
    return median(bare) if bare else None


_INTRODUCTION = """\
# What observing costs

The same training loop (158 modules, AdamW, a DataLoader with 2 workers, the worker side on) bare and
observed, in turns. An overhead is a stretch's time per step less that of the bare stretches before and
after it; each figure is the median of these, with its 95% bootstrap interval in brackets. Made by
`stoker bench overhead`, whose module docstring tells the method; do not edit.
"""


def page(results: Sequence[Result]) -> str:
    """The benchmark's page in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(result) for result in results)])


def _section(result: Result) -> str:
    figures = result.figures
    sizes = [key.removeprefix("stretches_") for key in figures if key.startswith("stretches_")]
    rows = [
        ("bare step, ms", "bare_ms_{}", 2),
        ("Stoker, us a step", "us_per_step_{}", 0),
        ("Stoker, % of the step", "percent_at_{}", 2),
        ("Stoker by processes, us a step", "us_per_step_by_process_{}", 0),
        ("TraceML (auto) by processes, us a step", "us_per_step_peer_traceml_{}", 0),
        ("TraceML (manual) by processes, us a step", "us_per_step_peer_traceml_manual_{}", 0),
        ("rate under Stoker over rate under TraceML (auto)", "rate_over_peer_traceml_{}", 3),
        ("cores that others had meanwhile", "others_cores_{}", 2),
        ("CPU of the training thread, us a step", "cpu_us_training_thread_{}", 0),
        ("CPU of other threads, us a step", "cpu_us_other_threads_{}", 0),
        ("CPU of the workers, us a step", "cpu_us_workers_{}", 0),
        ("CPU of the process that writes the record, us a step", "cpu_us_beside_{}", 0),
    ]
    cells = [
        [label, *(number(figures, key.format(size), digits) for size in sizes)] for label, key, digits in rows
    ]
    head = ["", *(f"{size} nominal" for size in sizes)]
    parts = [f"## {result.hardware}, {result.date}\n", table(head, cells)]
    parts += [
        f"{run['kind']} was left out: {run['why']}.\n" for run in result.runs if run["how"] == "skipped"
    ]
    return "\n".join([*parts, origin(result) + "\n"])
