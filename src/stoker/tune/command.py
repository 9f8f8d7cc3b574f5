"""`stoker tune`: a diagnosis, then a search, then settings, a report and a table."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from stoker.changes import Kind
from stoker.errors import NotPermitted, UsageError
from stoker.tune import page, settings_file
from stoker.tune.finding import DEFAULT_BUDGET, Found, begin, find
from stoker.tune.search import Finds
from stoker.tune.words import plan_as_json, show, show_plan
from stoker.tune.workers import find_workers
from stoker.watch.record import default_root, writing

# What is read with each finder; without one, all but what is a sweep's.
_READ = {
    "--workers": ("--dry-run",),
    "--micro-batch": ("--allow",),
    "--lr": ("--lr-range", "--lr-steps"),
    "": ("--strict", "--allow", "--out", "--resume", "--dry-run"),
}


def refuse_unread(finder: str, given: Mapping[str, object]) -> None:
    """Refuse options that are given beside a finder, or without one, and would do nothing there."""
    if unread := [name for name, value in given.items() if value and name not in _READ[finder]]:
        beside = f"beside {finder}" if finder else "without --lr"
        read = ", ".join(_READ[finder])
        raise UsageError(f"{', '.join(unread)} {beside} would do nothing: leave it out. What is read: {read}")


def tune(
    words: list[str],
    *,
    module: bool = False,
    budget: float = DEFAULT_BUDGET,
    strict: bool = False,
    allow: Sequence[str] = (),
    out: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    ranks: int = 1,
    offline: bool = False,
    as_json: bool = False,
) -> None:
    """Find settings for a script, write them, and print what was tried."""
    if not words:
        raise UsageError("nothing to tune: give a script (stoker tune train.py)")
    kinds = kinds_of(strict, allow)
    command = ["-m", *words] if module else words
    if dry_run:
        _plan(command, "all", budget=budget, kinds=kinds, ranks=ranks, offline=offline, as_json=as_json)
        return
    settings = Path("stoker.toml") if out is None else out
    settings_file.check(settings)  # before the search: what it finds is to have a place
    home = default_root().absolute().parent
    with Console(stderr=True).status("diagnosing the script as it is") as status, writing("the search", home):
        found = find(
            command,
            home=home,
            budget=budget,
            kinds=kinds,
            resume=resume,
            ranks=ranks,
            offline=offline,
            tell=status.update,
        )
    _tell(found, settings if found.tuned.settings else None, as_json)


def tune_workers(
    words: list[str],
    *,
    module: bool = False,
    budget: float = DEFAULT_BUDGET,
    dry_run: bool = False,
    ranks: int = 1,
    offline: bool = False,
    as_json: bool = False,
) -> None:
    """Find workers and prefetch for a script alone, and print them; no settings are written."""
    if not words:
        raise UsageError("nothing to tune: give a script (stoker tune --workers train.py)")
    command = ["-m", *words] if module else words
    if dry_run:
        kinds = kinds_of(strict=False, allow=())
        _plan(command, "workers", budget=budget, kinds=kinds, ranks=ranks, offline=offline, as_json=as_json)
        return
    home = default_root().absolute().parent
    with Console(stderr=True).status("diagnosing the script as it is") as status, writing("the search", home):
        found = find_workers(command, budget=budget, ranks=ranks, offline=offline, tell=status.update)
    _tell(found, None, as_json)


def _plan(
    command: Sequence[str],
    finds: Finds,
    *,
    budget: float,
    kinds: frozenset[Kind],
    ranks: int,
    offline: bool,
    as_json: bool,
) -> None:
    """Diagnose, and print what would be tried."""
    home = default_root().absolute().parent
    with Console(stderr=True).status("diagnosing the script as it is") as status, writing("the search", home):
        told, search = begin(
            command,
            home=home,
            budget=budget,
            kinds=kinds,
            finds=finds,
            ranks=ranks,
            offline=offline,
            tell=status.update,
        )
    if as_json:
        json.dump(plan_as_json(search, told), sys.stdout)
        sys.stdout.write("\n")
    else:
        show_plan(search, told, Console())


def _tell(found: Found, settings: Path | None, as_json: bool) -> None:
    """Write settings and report, and print what was found: that also where there is no room for them."""
    out, unwritten = _settings(found, settings)
    report, unreported = _report(found, out)
    why = unwritten or unreported
    if as_json:
        told = {
            **settings_file.as_json(found.tuned),
            "shield": found.diagnosis.shield,
            "offline": found.diagnosis.offline,
            "report": None if report is None else str(report),
        }
        json.dump(told, sys.stdout)
        sys.stdout.write("\n")
    else:
        show(found, out, report, Console())
    if why is not None:
        raise why


def _settings(found: Found, path: Path | None) -> tuple[Path | None, UsageError | None]:
    if path is None:
        return None, None
    try:
        settings_file.write(
            path, found.tuned, settings_file.as_words(found.command), found.folder, found.ranks
        )
    except UsageError as error:  # not to be written, or no longer to be read
        return None, error
    return path, None


def _report(found: Found, out: Path | None) -> tuple[Path | None, NotPermitted | None]:
    try:
        return page.write(found, out), None
    except NotPermitted as error:
        return None, error


def kinds_of(strict: bool, allow: Sequence[str]) -> frozenset[Kind]:
    """`same` and `redraw` unasked; the others by name."""
    if strict and allow:
        raise UsageError(
            f"--strict leaves every loss as it is, and --allow {allow[0]} does not: give one of them"
        )
    kinds: set[Kind] = {"same"} if strict else {"same", "redraw"}
    for name in allow:
        if name == "numerics":
            kinds.add("numerics")
        elif name == "optimization":
            kinds.add("optimization")
        else:
            raise UsageError(f"--allow {name}: there are numerics and optimization")
    return frozenset(kinds)
