"""`stoker tune`: a diagnosis, then a search, then settings and a table."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker.changes import Kind
from stoker.doctor.examination import Diagnosis, examine
from stoker.errors import UsageError
from stoker.scratch import Guards
from stoker.tune import settings_file
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import Probe, take
from stoker.tune.search import Search
from stoker.tune.trial import Trial, hold
from stoker.tune.tuner import Tuned, Tuner
from stoker.tune.words import show, show_plan
from stoker.watch.record import default_root

DEFAULT_BUDGET = 300.0
# Of the budget, for the diagnosis before the search.
_DIAGNOSIS = 0.3
# Of a trial after its first steps: three stretches take longer where steps do.
_TRIAL_SECONDS = 4.0


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
    as_json: bool = False,
) -> None:
    """Find settings for a script, write them, and print what was tried."""
    if not words:
        raise UsageError("nothing to tune: give a script (stoker tune train.py)")
    kinds = _kinds(strict, allow)
    command = ["-m", *words] if module else words
    home = default_root().absolute().parent
    began = time.monotonic()
    console = Console(stderr=as_json)
    with Console(stderr=True).status("diagnosing the script as it is") as status:
        told = examine(command, folder=home / "doctor", budget=budget * _DIAGNOSIS, tell=status.update)
        search = Search(verdict=told.verdict, run=told.evidence, kinds=kinds)
        if dry_run:
            show_plan(search, told, console)
            return
        about = {"command": command, "budget": budget, "kinds": sorted(kinds), "diagnosis": str(told.record)}
        ledger = (
            Ledger.begin(home / "tune" / time.strftime("%Y%m%d-%H%M%S"), about)
            if resume is None
            else Ledger.resume(resume, about)
        )
        tuner = Tuner(
            search=search,
            ledger=ledger,
            hold=_hold(command),
            probe=_probe(command),
            deadline=began + budget,
            ceiling=_ceiling(told),
            tell=status.update,
        )
        tuned = tuner.find()
    _keep(tuned, out, " ".join(command), ledger.folder)
    if as_json:
        json.dump(settings_file.as_json(tuned), sys.stdout)
        sys.stdout.write("\n")
    else:
        show(tuned, out, ledger.folder, " ".join(command), console)


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


def _hold(command: Sequence[str]) -> Any:
    def held(settings: Mapping[str, Any], folder: Path, left: float) -> Trial:
        seconds = min(_TRIAL_SECONDS, max(1.0, left / 4))
        return hold(command, settings, folder=folder, seconds=seconds, most=max(20.0, left), guards=Guards())

    return held


def _probe(command: Sequence[str]) -> Any:
    def probed(settings: Mapping[str, Any], seed: int) -> Probe:
        return take(command, settings, seed=seed)

    return probed


def _ceiling(told: Diagnosis) -> float | None:
    """How much faster computing alone is than the script."""
    compute = told.verdict.ceilings.get("compute")
    return None if compute is None else compute / told.verdict.rate


def _keep(tuned: Tuned, out: Path, command: str, ledger: Path) -> None:
    if tuned.settings:
        settings_file.write(out, tuned, command, ledger)
