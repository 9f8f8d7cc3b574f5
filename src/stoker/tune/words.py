"""A search as text for a terminal."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.doctor.examination import Diagnosis
from stoker.doctor.report.story import network
from stoker.tune.comparison import Ratio
from stoker.tune.finding import Found
from stoker.tune.search import Candidate, Search
from stoker.tune.settings_file import as_lines, as_words, use
from stoker.tune.tuned import LastPair, Tried, Tuned
from stoker.watch.words import rate


def show(found: Found, out: Path | None, report: Path | None, console: Console) -> None:
    """Print it. `out` are the settings that were written, if some were, `report` where that is."""
    tuned, command = found.tuned, as_words(found.command)
    console.print()
    if tuned.ratio is None:
        console.print(
            f"[bold]nothing is kept[/]: {rate(tuned.baseline, tuned.unit)} as it is", highlight=False
        )
    else:
        console.print(
            f"[bold]{tuned.ratio.mid:.2f} times as fast[/] ({tuned.ratio.within}): "
            f"{rate(tuned.baseline, tuned.unit)} to {rate(tuned.best, tuned.unit)}",
            highlight=False,
        )
    if tuned.last_pair is not None:
        console.print(escape(told_last(tuned.last_pair)), style="dim", highlight=False)
    if tuned.tried:
        console.print(_table(tuned))
    for line in by_reason(tuned.not_tried):
        console.print(f"not tried: {escape(line)}", style="dim", highlight=False)
    console.print(f"stopped: {escape(tuned.stopped)}; {tuned.runs} runs", highlight=False)
    for note in found.diagnosis.notes:
        console.print(f"the diagnosis: {escape(note)}", style="dim", highlight=False)
    if found.diagnosis.offline is not None:
        console.print(network(found.diagnosis.offline), style="dim", highlight=False)
    if out is not None:
        how = use(str(out), command, found.ranks)
        console.print(
            f"settings: {escape(str(out))}; use them: {escape(how)}", highlight=False, soft_wrap=True
        )
    elif tuned.settings:
        lines = [line for line in as_lines(tuned) if not line.startswith("#")]
        console.print(f"to use in stoker.toml: {escape(' '.join(lines))}", highlight=False, soft_wrap=True)
    console.print(f"trials: {escape(str(found.folder))}", highlight=False, soft_wrap=True)
    if report is not None:
        console.print(f"report: {escape(str(report))}", highlight=False, soft_wrap=True)


def told_last(pair: LastPair) -> str:
    """Whether the whole gain was measured once more at the end."""
    if pair.held:
        return "the script as it is and what is kept were run once more at the end, one after the other"
    return f"the script as it is and what is kept were not compared once more at the end: {pair.reason}"


def by_reason(not_tried: Iterable[str]) -> list[str]:
    """Changes that are not tried for the same reason, in one line."""
    found: dict[str, list[str]] = {}
    for line in dict.fromkeys(not_tried):
        names, _, reason = line.partition(": ")
        found.setdefault(reason, []).append(names)
    return [f"{', '.join(names)}: {reason}" for reason, names in found.items()]


def show_plan(search: Search, told: Diagnosis, console: Console) -> None:
    """What would be tried first of each, were nothing of it faster; nothing is run."""
    console.print(
        f"[bold]{told.verdict.cause}[/]: what would be tried, if nothing of it were faster", highlight=False
    )
    for candidate in _planned(search):
        guess = candidate.predicted
        expected = f", predicted {guess.mid:.2f} times ({guess.low:.2f} to {guess.high:.2f})" if guess else ""
        console.print(f"  {escape(candidate.name)}: {escape(candidate.why)}{expected}", highlight=False)
    for line in by_reason(search.not_tried):
        console.print(f"not tried: {escape(line)}", style="dim", highlight=False)


def plan_as_json(search: Search, told: Diagnosis) -> dict[str, Any]:
    """The same, as `stoker tune --dry-run --json` prints it."""
    planned = [
        {
            "change": one.change,
            "value": one.value,
            "why": one.why,
            "predicted": None if one.predicted is None else one.predicted.to_json(),
        }
        for one in _planned(search)
    ]
    return {
        "schema": 1,
        "cause": told.verdict.cause,
        "would_try": planned,
        "not_tried": list(dict.fromkeys(search.not_tried)),
    }


def _planned(search: Search) -> Iterator[Candidate]:
    for candidate in search.candidates():
        search.tell(candidate, faster=False)
        yield candidate


def _table(tuned: Tuned) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("change", "runs", "rate", "measured", "predicted", ""):
        table.add_column(name, justify="right" if name in ("runs", "rate") else "left")
    for one in tuned.tried:
        table.add_row(
            escape(one.candidate.name),
            str(one.runs),
            rate(one.rate, tuned.unit),
            _ratio(one.total),
            "n/a" if one.candidate.predicted is None else f"{one.candidate.predicted.mid:.2f}",
            _outcome(one),
        )
    return table


def _ratio(ratio: Ratio | None) -> str:
    return "n/a" if ratio is None else f"{ratio.mid:.2f} ({ratio.within})"


def _outcome(one: Tried) -> str:
    colour = {"kept": "green", "refused": "red", "guarded": "red", "broken": "red"}.get(one.outcome, "dim")
    return f"[{colour}]{one.outcome}[/]" + (f": {escape(one.reason)}" if one.reason else "")
