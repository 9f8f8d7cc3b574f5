"""`stoker doctor`: from the parsed words to a diagnosis, printed."""

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from stoker.doctor.examination import Diagnosis, examine, examine_record
from stoker.doctor.report import check_place, markdown_of, write
from stoker.doctor.words import show
from stoker.errors import NotPermitted, UsageError
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
    markdown: bool = False,
    report: Path | None = None,
    no_report: bool = False,
) -> None:
    """Diagnose a script or a record, print what was found, and write the report."""
    if as_json and markdown:
        raise UsageError("--json and --markdown both want stdout: give one of them")
    if report is not None:
        if no_report:
            raise UsageError(f"--report {report} and --no-report contradict each other: give one of them")
        check_place(report)
    if not words:
        raise UsageError("nothing to diagnose: give a script (stoker doctor train.py) or a run's record")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            f"the doctor examines one process, and WORLD_SIZE is {os.environ['WORLD_SIZE']}: "
            "start it without torchrun, on a script that trains with one rank"
        )
    diagnosis = _of(words, module=module, runs=runs, budget=budget)
    place, why = (None, None) if no_report else _write(diagnosis, report)
    if as_json:
        told = {**diagnosis.to_json(), "report": None if place is None else str(place)}
        json.dump(told, sys.stdout)
        sys.stdout.write("\n")
    elif markdown:
        sys.stdout.write(markdown_of(diagnosis))
    else:
        show(diagnosis, Console())
    console = Console(stderr=as_json or markdown)
    if place is not None and not as_json:
        console.print(f"report: {escape(str(place))}", highlight=False, soft_wrap=True)
    if why is not None:
        if report is not None:
            raise why
        console.print(escape(str(why)), style="yellow", highlight=False)


def _write(diagnosis: Diagnosis, report: Path | None) -> tuple[Path | None, NotPermitted | None]:
    """Where the report is; or why it is not: a verdict is told all the same."""
    try:
        return write(diagnosis, report), None
    except NotPermitted as error:
        return None, error


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
