"""A diagnosis as text for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stoker.doctor.evidence import Evidence
from stoker.doctor.examination import Diagnosis
from stoker.doctor.plan_words import show_budget, show_plan
from stoker.doctor.rank_evidence import KEY
from stoker.doctor.report.readings import ranks_beside
from stoker.doctor.report.story import after_cures, bars, network, now
from stoker.watch.phases import PHASES
from stoker.watch.words import duration, percent, rate


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print it."""
    verdict, run = diagnosis.verdict, diagnosis.evidence
    console.print()
    share = f", {percent(verdict.share)} of the step" if verdict.share else ""
    console.print(f"[bold]{verdict.cause}[/]{share}", highlight=False)
    for line in verdict.why:
        console.print(f"  {escape(line)}", highlight=False)
    for cure in verdict.named[0].cures if verdict.named else ():
        console.print(
            f"  [green]do[/]: {cure.text}" + (f" ({cure.risk})" if cure.risk else ""), highlight=False
        )
    after = after_cures(diagnosis)
    if after and after[0] is not None:
        console.print(f"  {after[0]}", highlight=False)
    for also, then in zip(verdict.named[1:], after[1:], strict=True):
        console.print(
            f"also [bold]{also.cause}[/], {percent(also.share)}: {escape(also.evidence[0])}", highlight=False
        )
        if also.cures:
            console.print(f"  [green]do[/]: {', '.join(also.changes)}", highlight=False)
        if then is not None:
            console.print(f"  {then}", highlight=False)
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("step", duration(run.step if run.steps else None), rate(now(diagnosis), "step"))
    for bar in bars(diagnosis)[1:]:
        each = None if bar.rate is None else 1 / bar.rate
        table.add_row(bar.name, duration(each), bar.why if bar.rate is None else rate(bar.rate, "step"))
    console.print(table)
    console.print()
    _show_ranks(run, console)
    if diagnosis.plan is not None:
        show_plan(diagnosis.plan, console)
    if diagnosis.budget is not None:
        show_budget(diagnosis.budget, console)
    shares = Text("where the step goes: ")
    shares.append(", ".join(f"{name} {percent(run.shares.get(name))}" for name in PHASES))
    console.print(shares)
    if verdict.eliminated:
        console.print("not the cause:")
        for cause, by in verdict.eliminated.items():
            console.print(f"  {cause}: {escape(by)}", style="dim", highlight=False)
    if verdict.untold:
        console.print(f"could not be told: {', '.join(verdict.untold)}", style="dim", highlight=False)
    if KEY in run.missing:
        console.print(f"ranks were not joined: {escape(run.missing[KEY])}", style="yellow", highlight=False)
    for note in diagnosis.notes:
        console.print(escape(note), style="yellow", highlight=False)
    if diagnosis.offline is not None:
        console.print(network(diagnosis.offline), style="dim", highlight=False)
    console.print(
        f"took {duration(diagnosis.seconds)}; record: {escape(str(diagnosis.record))}",
        highlight=False,
        soft_wrap=True,
    )


def _show_ranks(run: Evidence, console: Console) -> None:
    """Each rank beside the others, where there are several."""
    ranks = ranks_beside(run)
    if not ranks.rows:
        return
    table = Table(box=None, pad_edge=False)
    for name in ranks.columns:
        table.add_column(name, justify="left" if name == "rank" else "right")
    for row in ranks.rows:
        table.add_row(*row)
    console.print(table)
    console.print()
