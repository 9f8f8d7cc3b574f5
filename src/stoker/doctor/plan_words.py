"""The plan, the memory budget, answers about it and the model's scores, as text for a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.doctor.budget import Budget
from stoker.doctor.calibration import Summary
from stoker.doctor.fits import Answer
from stoker.doctor.model import Interval
from stoker.doctor.plan import Option, Plan, Step
from stoker.facts.words import size
from stoker.watch.words import duration, figure, percent, rate

# Room for more workers than this is not worth a word.
_MANY_WORKERS = 64


def show_plan(plan: Plan, console: Console) -> None:
    """The options beside the run as it is; each change once, where it first stands."""
    now = [rate(plan.rate, "step")] if plan.rate else []
    now += [f"an epoch {duration(plan.epoch)}"] if plan.epoch is not None else []
    now += [f"all {duration(plan.total)}"] if plan.total is not None else []
    told = f"; now {', '.join(now)}" if now and plan.options else ""
    console.print(f"[bold]plan[/]: {escape(plan.summary)}{told}", highlight=False)
    shown: set[str] = set()
    for option in plan.options:
        console.print(f"  [bold]{option.name}[/]: {_gain(option)}", highlight=False)
        for step in () if option.alike else option.changes:
            if step.change in shown:
                console.print(f"    {_said(step)}", highlight=False)
            else:
                _show_step(step, console)
            shown.add(step.change)
    for note in plan.notes:
        console.print(f"  {escape(note)}", style="dim", highlight=False)


def _gain(option: Option) -> str:
    if option.alike is not None:
        return f"the same as {option.alike}"
    if not option.changes:
        return "nothing that leaves as much as it is"
    if option.predicted is None:
        return "what it gains was not measured"
    parts = [_interval(option.predicted)]
    if option.epoch is not None:
        parts.append(f"an epoch {_span(option.epoch)}")
    if option.total is not None:
        parts.append(f"all {_span(option.total)}")
    if option.ram.fits is False:
        parts.append(f"[red]needs {size(option.ram.need)} of {size(option.ram.free)} free[/]")
    return ", ".join(parts)


def _interval(predicted: Interval) -> str:
    return f"{rate(predicted.mid, 'step')} ({figure(predicted.low)} to {figure(predicted.high)})"


def _span(seconds: Interval) -> str:
    low, high = duration(seconds.low), duration(seconds.high)
    return low if low == high else f"{low} to {high}"


def _said(step: Step) -> str:
    return step.change if step.value is None else f"{step.change} = {step.value}"


def _show_step(step: Step, console: Console) -> None:
    kind = "" if step.kind == "same" else f" [yellow]({step.kind})[/]"
    for line in step.apply:
        console.print(f"    [green]{escape(line)}[/]{kind}", highlight=False)
    for label, text in (("mind", step.mind), ("then", step.consequences)):
        if text:
            console.print(f"      {label}: {escape(text)}", style="dim", highlight=False)


def show_budget(budget: Budget, console: Console) -> None:
    """A line for the host, and one for the card where there is one."""
    ram, vram = budget.ram, budget.vram
    if ram.need is not None:
        each = "" if not ram.count else f", {size(ram.each_worker)} of it for each of {ram.count} workers"
        few = ram.most_workers is not None and ram.most_workers <= _MANY_WORKERS
        most = f"; room for {ram.most_workers} workers ({ram.limited_by})" if few else ""
        whose = "memory" if ram.ranks == 1 else f"memory for each of {ram.ranks} ranks"
        console.print(f"{whose}: {size(ram.need)} of {size(ram.free)} free{each}{most}", highlight=False)
    if vram.fixed is not None and vram.per_sample is not None:
        off = "not checked" if vram.error is None else f"checked to {percent(vram.error)}"
        largest = "" if vram.largest is None else f"; largest batch for what is free: {vram.largest}"
        console.print(
            f"card: {size(vram.fixed)} + {size(vram.per_sample)} a sample ({off}){largest}", highlight=False
        )


def show_answers(answers: Sequence[Answer], console: Console) -> None:
    """What was asked with `--fits`."""
    for told in answers:
        style = {True: "green", False: "red", None: "yellow"}[told.fits]
        console.print(escape(told.text), style=style, highlight=False)


def show_calibration(summaries: Mapping[str, Summary], place: str, console: Console) -> None:
    """How good predictions were, by change."""
    if not summaries:
        console.print(f"no prediction was tried yet: no scores in {escape(place)}", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("change", "predictions", "median error", "in the 90% interval"):
        table.add_column(name, justify="left" if name == "change" else "right")
    for change, told in summaries.items():
        table.add_row(change, f"{told.number}", percent(told.median_error), percent(told.coverage))
    console.print(table)
