"""`stoker doctor`: from the parsed words to a diagnosis, printed."""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from stoker.doctor import calibration, fits, scale_links, scale_words
from stoker.doctor.examination import Diagnosis, examine, examine_ranks, examine_record
from stoker.doctor.fresh_sizes import Wish
from stoker.doctor.notebook import as_script
from stoker.doctor.plan_words import show_answers, show_calibration
from stoker.doctor.report import check_place, markdown_of, write
from stoker.doctor.scale import GPUS
from stoker.doctor.scale_load import load_of, machine_of
from stoker.doctor.words import show
from stoker.doctor.world import ranks_to_start
from stoker.errors import DiagnosisFailed, NotPermitted, ScriptNotFound, UsageError
from stoker.watch import Record
from stoker.watch.record import default_root, told_of, writing

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
    nproc: int | None = None,
    steps: int | None = None,
    asked: str | None = None,
    offline: bool = False,
) -> None:
    """Diagnose a script or a record, print what was found, and write the report.

    `steps` are those of the whole run, for its times; `asked` is whether something fits (`fits.parse`);
    `offline` cuts the script off the network.
    """
    question = None if asked is None else fits.parse(asked)
    if as_json and markdown:
        raise UsageError("--json and --markdown both want stdout: give one of them")
    if report is not None:
        if no_report:
            raise UsageError(f"--report {report} and --no-report contradict each other: give one of them")
        check_place(report)
    if not words:
        raise UsageError("nothing to diagnose: give a script (stoker doctor train.py) or a run's record")
    ranks = ranks_to_start(nproc, os.environ)
    if ranks is None:
        return
    wish = _wish(question)
    held = _Held(runs=runs, budget=budget, ranks=ranks, wish=wish, offline=offline)
    diagnosis = _of(words, held, module=module)
    if steps is not None:
        diagnosis = diagnosis.planned(_home(runs), steps=steps)
    told_of = () if question is None or diagnosis.budget is None else fits.answer(question, diagnosis.budget)
    place, why = (None, None) if no_report else _write(diagnosis, report)
    if as_json:
        told = {**diagnosis.to_json(), "report": None if place is None else str(place)}
        if question is not None:
            told["fits"] = [one.to_json() for one in told_of]
        json.dump(told, sys.stdout)
        sys.stdout.write("\n")
    elif markdown:
        sys.stdout.write(markdown_of(diagnosis))
    else:
        show(diagnosis, Console())
    console = Console(stderr=as_json or markdown)
    if not as_json:
        show_answers(told_of, console)
    if place is not None and not as_json:
        console.print(f"report: {escape(str(place))}", highlight=False, soft_wrap=True)
    if why is not None:
        if report is not None:
            raise why
        console.print(escape(str(why)), style="yellow", highlight=False)


def tell_calibration(*, runs: Path | None = None, as_json: bool = False) -> None:
    """Print how good predictions were so far."""
    place = _home(runs) / calibration.NAME
    summaries = calibration.summarise(calibration.read_scores(place))
    if as_json:
        told = {name: summary.to_json() for name, summary in summaries.items()}
        json.dump({"schema": 1, "file": str(place), "calibration": told}, sys.stdout)
        sys.stdout.write("\n")
    else:
        show_calibration(summaries, str(place), Console())


def tell_scale(
    words: list[str],
    *,
    links: list[str],
    gpus: list[int],
    runs: Path | None = None,
    as_json: bool = False,
    markdown: bool = False,
) -> None:
    """Print what many GPUs would be fed by, from the record of a run."""
    if as_json and markdown:
        raise UsageError("--json and --markdown both want stdout: give one of them")
    if len(words) != 1:
        raise UsageError(
            f"--scale starts from one record, not from {' '.join(words) or 'nothing'}: record a run with "
            "stoker run train.py, then stoker doctor latest --scale"
        )
    told = scale_links.parse(links)
    record = Record.open(words[0], runs)
    load = load_of(record, told)
    known = scale_links.links_of(told, machine_of(record))
    found = scale_words.scale_of(record.id, load, known, list(told), gpus or list(GPUS))
    if as_json:
        json.dump(found.to_json(), sys.stdout)
        sys.stdout.write("\n")
    elif markdown:
        sys.stdout.write(scale_words.markdown_of(found))
    else:
        scale_words.show(found, Console())


def _home(runs: Path | None) -> Path:
    """The `.stoker` in which scores are kept."""
    return (runs or default_root()).absolute().parent


def _write(diagnosis: Diagnosis, report: Path | None) -> tuple[Path | None, NotPermitted | None]:
    """Where the report is; or why it is not: a verdict is told all the same."""
    try:
        return write(diagnosis, report), None
    except NotPermitted as error:
        return None, error


def _wish(question: fits.Question | None) -> Wish:
    """What of the question is about the card."""
    if question is None:
        return Wish()
    return Wish(is_asked=question.batch is not None or question.vram is not None, batch=question.batch)


@dataclass(frozen=True, kw_only=True)
class _Held:
    """How a script is to be run aside."""

    runs: Path | None
    budget: float
    ranks: int
    wish: Wish
    offline: bool


def _of(words: list[str], held: _Held, *, module: bool) -> Diagnosis:
    if not module and len(words) == 1 and is_record(words[0], held.runs):
        if held.offline:
            raise UsageError(f"--offline is for a script: {words[0]} is a record, and nothing is run")
        return examine_record(Record.open(words[0], held.runs))
    if not module and words[0].endswith(".ipynb"):
        return _of_notebook(words, held)
    status = Console(stderr=True)
    command = ["-m", *words] if module else words
    folder, budget, offline = _home(held.runs) / "doctor", held.budget, held.offline
    with status.status("looking at this machine") as told, writing("the diagnosis", folder):
        tell = told.update
        try:
            if held.ranks > 1:
                ranks = held.ranks
                return examine_ranks(
                    command, ranks=ranks, folder=folder, budget=budget, tell=tell, offline=offline
                )
            return examine(command, folder=folder, budget=budget, tell=tell, wish=held.wish, offline=offline)
        except ScriptNotFound as error:
            raise ScriptNotFound(f"{error}. {_nor_a_record(words[0], held.runs)}") from None


def _of_notebook(words: list[str], held: _Held) -> Diagnosis:
    """Its cells are diagnosed as a script, and are never called one."""
    with as_script(Path(words[0])) as script:
        try:
            found = _of([str(script), *words[1:]], held, module=False)
        except DiagnosisFailed as error:
            raise DiagnosisFailed(str(error).replace(str(script), words[0])) from error
    return replace(found, command=tuple(words))


def _nor_a_record(word: str, runs: Path | None) -> str:
    """That records were looked for too, and where; what else is there."""
    root = runs or default_root()
    folder = next((one for one in (Path(word), root / word) if one.is_dir()), None)
    why = "No record has that name either"
    if folder is not None:
        why = f"The folder {folder} is no record: there is no run.json in it"
    return f"{why}. Records are looked for in {told_of(root)}; `latest` names the newest"


def is_record(word: str, runs: Path | None) -> bool:
    """Whether it names a run's record: a folder, an id, or the latest."""
    root = runs or default_root()
    return word == "latest" or (Path(word) / "run.json").exists() or (root / word / "run.json").exists()
