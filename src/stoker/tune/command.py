"""`stoker tune`: a diagnosis, then a search, then settings, a report and a table."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from stoker.changes import Kind
from stoker.errors import NotPermitted, UsageError
from stoker.tune import page, settings_file
from stoker.tune.finding import DEFAULT_BUDGET, Found, begin, find
from stoker.tune.words import show, show_plan
from stoker.tune.workers import find_workers
from stoker.watch.record import default_root


def tune(
    words: list[str],
    *,
    module: bool = False,
    budget: float = DEFAULT_BUDGET,
    strict: bool = False,
    allow: Sequence[str] = (),
    out: Path = Path("stoker.toml"),
    resume: Path | None = None,
    dry_run: bool = False,
    ranks: int = 1,
    as_json: bool = False,
) -> None:
    """Find settings for a script, write them, and print what was tried."""
    if not words:
        raise UsageError("nothing to tune: give a script (stoker tune train.py)")
    kinds = _kinds(strict, allow)
    command = ["-m", *words] if module else words
    home = default_root().absolute().parent
    console = Console(stderr=as_json)
    with Console(stderr=True).status("diagnosing the script as it is") as status:
        if dry_run:
            told, search = begin(
                command, home=home, budget=budget, kinds=kinds, ranks=ranks, tell=status.update
            )
            show_plan(search, told, console)
            return
        found = find(
            command, home=home, budget=budget, kinds=kinds, resume=resume, ranks=ranks, tell=status.update
        )
    if found.tuned.settings:
        settings_file.write(out, found.tuned, " ".join(command), found.folder, ranks)
    _tell(found, out if found.tuned.settings else None, as_json)


def tune_workers(
    words: list[str],
    *,
    module: bool = False,
    budget: float = DEFAULT_BUDGET,
    ranks: int = 1,
    as_json: bool = False,
) -> None:
    """Find workers and prefetch for a script alone, and print them; no settings are written."""
    if not words:
        raise UsageError("nothing to tune: give a script (stoker tune --workers train.py)")
    command = ["-m", *words] if module else words
    with Console(stderr=True).status("diagnosing the script as it is") as status:
        found = find_workers(command, budget=budget, ranks=ranks, tell=status.update)
    _tell(found, None, as_json)


def _tell(found: Found, out: Path | None, as_json: bool) -> None:
    """Write the report, and print what was found: that also where there is no room for a report."""
    report, why = _report(found, out)
    if as_json:
        told = {**settings_file.as_json(found.tuned), "report": None if report is None else str(report)}
        json.dump(told, sys.stdout)
        sys.stdout.write("\n")
    else:
        show(found, out, report, Console())
    if why is not None:
        raise why


def _report(found: Found, out: Path | None) -> tuple[Path | None, NotPermitted | None]:
    try:
        return page.write(found, out), None
    except NotPermitted as error:
        return None, error


def _kinds(strict: bool, allow: Sequence[str]) -> frozenset[Kind]:
    """`same` and `redraw` unasked; the others by name."""
    kinds: set[Kind] = {"same"} if strict else {"same", "redraw"}
    for name in allow:
        if name == "numerics":
            kinds.add("numerics")
        elif name == "optimization":
            kinds.add("optimization")
        else:
            raise UsageError(f"--allow {name}: there are numerics and optimization")
    return frozenset(kinds)
