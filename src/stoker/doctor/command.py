"""`stoker doctor`: from the parsed words to a diagnosis, printed."""

import json
import os
import sys
from pathlib import Path

from rich.console import Console

from stoker.doctor.examination import Diagnosis, examine, examine_record
from stoker.doctor.words import show
from stoker.errors import UsageError
from stoker.watch import Record
from stoker.watch.record import default_root

DEFAULT_BUDGET = 90.0


def diagnose(
    words: list[str],
    *,
    module: bool = False,
    runs: Path | None = None,
    budget: float = DEFAULT_BUDGET,
    as_json: bool = False,
) -> None:
    """Diagnose a script or a record, and print what was found."""
    if not words:
        raise UsageError("nothing to diagnose: give a script (stoker doctor train.py) or a run's record")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            f"the doctor examines one process, and WORLD_SIZE is {os.environ['WORLD_SIZE']}: "
            "start it without torchrun, on a script that trains with one rank"
        )
    console = Console(stderr=as_json)
    diagnosis = _of(words, module=module, runs=runs, budget=budget)
    if as_json:
        json.dump(diagnosis.to_json(), sys.stdout)
        sys.stdout.write("\n")
    else:
        show(diagnosis, console)


def _of(words: list[str], *, module: bool, runs: Path | None, budget: float) -> Diagnosis:
    if not module and len(words) == 1 and _is_record(words[0], runs or default_root()):
        return examine_record(Record.open(words[0], runs))
    status = Console(stderr=True)
    with status.status("looking at this machine") as told:
        return examine(
            ["-m", *words] if module else words,
            folder=(runs or default_root()).absolute().parent / "doctor",
            budget=budget,
            tell=told.update,
        )


def _is_record(word: str, root: Path) -> bool:
    return word == "latest" or (Path(word) / "run.json").exists() or (root / word / "run.json").exists()
