"""From a diagnosis to its report: the record is read once more, for the picture over time."""

from collections.abc import Iterator
from pathlib import Path

from stoker.doctor.examination import Diagnosis
from stoker.doctor.report.frame import put
from stoker.doctor.report.markdown import text_of
from stoker.doctor.report.page import document, fragment
from stoker.doctor.report.series import Series, thin
from stoker.errors import UsageError
from stoker.watch import Record, Step

NAME = "report.html"
# Parts in which steps are the loop's own. After them come experiments in which a step is none.
_OWN_STEPS = ("start and warm-up", "observe", "replay")


def html_of(diagnosis: Diagnosis) -> str:
    """The report as a whole page."""
    record = Record.open(diagnosis.record)
    return document(diagnosis, record.about, _series(diagnosis, record))


def inline(diagnosis: Diagnosis) -> str:
    """The report for a notebook's cell."""
    record = Record.open(diagnosis.record)
    return fragment(diagnosis, record.about, _series(diagnosis, record))


def markdown_of(diagnosis: Diagnosis) -> str:
    """The report for an issue tracker."""
    return text_of(diagnosis, Record.open(diagnosis.record).about)


def check_place(path: Path) -> None:
    """Refuse a place for a report before anything is run for it.

    Only `.html` and `.md`: a script's own name, given where the report's is asked for, would be written over.
    """
    if path.suffix not in (".html", ".htm", ".md"):
        raise UsageError(
            f"--report {path}: a report is written to a file that ends in .html or .md; name one, "
            "or leave --report out to have it beside the record"
        )
    if path.is_dir():
        raise UsageError(f"--report {path} is a folder: name a file in it, {path / NAME} say")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--report {path}: there is no folder {path.absolute().parent}; make it first")


def write(diagnosis: Diagnosis, path: Path | None = None) -> Path:
    """Put the report there, whole or not at all; beside the record unless told otherwise."""
    place = diagnosis.record / NAME if path is None else path.absolute()
    text = markdown_of(diagnosis) if place.suffix == ".md" else html_of(diagnosis)
    return put(place, text, advice="name another place with --report PATH")


def _series(diagnosis: Diagnosis, record: Record) -> Series | None:
    if not record.ranks:
        return None
    ends = [part.ended for part in diagnosis.method if part.name in _OWN_STEPS and part.ended is not None]
    return thin(_until(record.ranks[min(record.ranks)].steps(), max(ends, default=None)))


def _until(steps: Iterator[Step], end: float | None) -> Iterator[Step]:
    for step in steps:
        if end is None or step.t <= end:
            yield step
