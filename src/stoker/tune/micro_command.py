"""`stoker tune --micro-batch`: the fastest micro-batch that fits a script, and what was tried."""

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.errors import UsageError
from stoker.tune.command import kinds_of
from stoker.tune.micro_batch import find_micro_batch
from stoker.tune.micro_found import MicroBatch
from stoker.watch.words import rate


def find(
    words: list[str],
    *,
    module: bool = False,
    budget: float = 300.0,
    allow: Sequence[str] = (),
    ranks: int = 1,
    offline: bool = False,
    as_json: bool = False,
) -> None:
    """Find it and print it."""
    if not words:
        raise UsageError("nothing to tune: give a script (stoker tune --micro-batch train.py)")
    kinds = kinds_of(strict=False, allow=allow)
    command = ["-m", *words] if module else words
    with Console(stderr=True).status("trying the batch as it is") as status:
        found = find_micro_batch(
            command,
            budget=budget,
            ranks=ranks,
            allow_optimization="optimization" in kinds,
            offline=offline,
            tell=status.update,
        )
    if as_json:
        json.dump(found.to_json(), sys.stdout)
        sys.stdout.write("\n")
    else:
        show(found, Console())


def show(found: MicroBatch, console: Console) -> None:
    """Print it as text."""
    table = Table(box=None, pad_edge=False)
    for name in ("samples", "rate", ""):
        table.add_column(name, justify="left" if not name else "right")
    for one in sorted(found.trials, key=lambda one: -one.size):
        table.add_row(
            str(one.size), rate(one.rate, "sample"), escape(f"{one.outcome}: {one.reason}".strip(": "))
        )
    console.print(table)
    for note in found.notes:
        console.print(f"note: {escape(note)}", style="dim", highlight=False, soft_wrap=True)
    if found.size is None:
        console.print(f"[bold]no micro-batch[/]: {escape(found.reason)}", highlight=False)
        return
    whole = "" if found.whole is None else f", and {rate(found.whole, 'sample')} with the whole batch"
    if found.size >= found.batch:
        console.print(f"[bold]the batch as it is[/]: {rate(found.rate, 'sample')}", highlight=False)
    else:
        told = f"{rate(found.rate, 'sample')}{whole}"
        console.print(f"[bold]micro_batch = {found.size}[/] of {found.batch}: {told}", highlight=False)
    console.print(escape(found.reason), highlight=False, soft_wrap=True)
    if found.check is not None:
        console.print(f"checked: {escape(found.check.by)}", highlight=False, soft_wrap=True)
    if found.size < found.batch:
        console.print(
            escape(f"use it: [changes] micro_batch = {found.size} in stoker.toml, with stoker run --with"),
            highlight=False,
            soft_wrap=True,
        )
