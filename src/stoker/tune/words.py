"""A search as text for a terminal."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.doctor.examination import Diagnosis
from stoker.tune.comparison import Ratio
from stoker.tune.search import Search
from stoker.tune.tuner import Tried, Tuned
from stoker.watch.words import rate


def show(tuned: Tuned, out: Path, ledger: Path, command: str, console: Console) -> None:
    """Print it."""
    console.print()
    if tuned.ratio is None:
        console.print(
            f"[bold]nothing is kept[/]: {rate(tuned.baseline, tuned.unit)} as it is", highlight=False
        )
    else:
        console.print(
            f"[bold]{tuned.ratio.mid:.2f} times as fast[/] ({tuned.ratio.low:.2f} to "
            f"{tuned.ratio.high:.2f}): {rate(tuned.baseline, tuned.unit)} to {rate(tuned.best, tuned.unit)}",
            highlight=False,
        )
    if tuned.tried:
        console.print(_table(tuned))
    for line in tuned.not_tried:
        console.print(f"not tried: {escape(line)}", style="dim", highlight=False)
    console.print(f"stopped: {escape(tuned.stopped)}; {tuned.trials} runs", highlight=False)
    if tuned.settings:
        console.print(f"settings: {escape(str(out))}; use them: stoker run --with {escape(str(out))} "
                      f"{escape(command)}", highlight=False, soft_wrap=True)  # fmt: skip
    console.print(f"trials: {escape(str(ledger))}", highlight=False, soft_wrap=True)


def show_plan(search: Search, told: Diagnosis, console: Console) -> None:
    """What would be tried first of each, were nothing of it faster; nothing is run."""
    console.print(
        f"[bold]{told.verdict.cause}[/]: what would be tried, if nothing of it were faster", highlight=False
    )
    for candidate in search.candidates():
        search.tell(candidate, faster=False)
        guess = candidate.predicted
        expected = f", predicted {guess.mid:.2f} times ({guess.low:.2f} to {guess.high:.2f})" if guess else ""
        console.print(f"  {escape(candidate.name)}: {escape(candidate.why)}{expected}", highlight=False)
    for line in dict.fromkeys(search.not_tried):
        console.print(f"not tried: {escape(line)}", style="dim", highlight=False)


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
    return "n/a" if ratio is None else f"{ratio.mid:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _outcome(one: Tried) -> str:
    colour = {"kept": "green", "refused": "red", "broken": "red"}.get(one.outcome, "dim")
    return f"[{colour}]{one.outcome}[/]" + (f": {escape(one.reason)}" if one.reason else "")
