"""The campaign's page: a row for each kind of fault, with how often it was tried and what each came to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.bench.faults.row import Row
from stoker.bench.page import origin, table
from stoker.bench.result import Result

_TEXT = """# Faults

What was done to Stoker on purpose, a row for each kind of fault, each a number of times at moments and places
that a seed says. A trial holds when the work went on or ended with a clear error (one line that names what,
the value and what to do), and everything that can be counted is there: samples by number, steps, files byte
by byte, jobs, records and checkpoints that can be read; and no process, temporary file or shared memory of it
is left. `missed`: the fault fell on nothing, as a kill after the end does.
[docs/faults.md](../docs/faults.md) tells how each is judged.

`stoker bench faults`
"""
_HEAD = (
    "fault", "part", "tried", "goes on", "clear error", "lost", "hung", "traceback", "unclear", "left behind",
    "missed",
)  # fmt: skip
_SHOWN = ("goes_on", "clear_error", "lost", "hung", "traceback", "unclear", "left", "missed")


def page(results: Sequence[Result]) -> str:
    """The table of each result, and every trial that did not hold, with why."""
    from stoker.bench.faults.rows import ALL

    parts = [_TEXT]
    for result in results:
        parts += [f"## {result.hardware}\n", _summary(result), _table(ALL, result.runs), _broken(result.runs)]
        parts += [_not_run(result.runs), origin(result) + "\n"]
    return "\n".join(part for part in parts if part)


def _summary(result: Result) -> str:
    figures = {name: int(value) for name, value in result.figures.items()}
    counted = [name.removeprefix("counted_") for name in figures if name.startswith("counted_")]
    things = [
        f"{figures[f'found_{name}']:,} of {figures[f'counted_{name}']:,} {name.replace('_', ' ')}"
        for name in counted
    ]
    return (
        f"{figures['faults_trials']:,} trials in {figures['faults_rows']} rows, "
        f"{figures['faults_rows_held']} of which held every time; {figures['faults_rows_not_run']} could not "
        f"be run here. Found: {', '.join(things) or 'nothing was counted'}.\n"
    )


def _table(rows: Sequence[Row], runs: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        own = [run for run in runs if run["row"] == row.name]
        if not own:
            continue
        about = f"**{row.name}**: {row.fault}"
        if "not_run" in own[0]:
            lines.append([about, row.part, *["n/a"] * (1 + len(_SHOWN))])
            continue
        counts = Counter(run["outcome"] for run in own)
        lines.append([about, row.part, str(len(own)), *(str(counts[name]) for name in _SHOWN)])
    return table(_HEAD, lines)


def _broken(runs: Sequence[Mapping[str, Any]]) -> str:
    wrong = [run for run in runs if "outcome" in run and not run["held"]]
    if not wrong:
        return ""
    lines = [
        f"- {run['row']} {run['turn']}: {run['outcome']}: {_one_line(run['why'])}"
        + (f" ({_one_line(run['note'])})" if run["note"] else "")
        for run in wrong
    ]
    return "\n".join(["Not held:\n", *lines, ""])


def _not_run(runs: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"- {run['row']}: {run['not_run']}" for run in runs if "not_run" in run]
    return "\n".join(["Not run here:\n", *lines, ""]) if lines else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:300]
