"""The report: what a reader must find in it, and that no string of the user's becomes part of the page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from diagnoses import BEGAN, diagnosis, evidence, plan, record
from markdown_it import MarkdownIt
from rich.console import Console

from stoker.doctor import command
from stoker.doctor.evidence import LoaderFacts
from stoker.doctor.experiments.passes import Pass, Reread, Stub
from stoker.doctor.method import stretches
from stoker.doctor.report import check_place, html_of, inline, markdown_of, write
from stoker.doctor.report.pictures import over_time
from stoker.doctor.report.series import MOST_COLUMNS, thin
from stoker.doctor.words import show
from stoker.errors import NotPermitted, UsageError
from stoker.scratch import Message
from stoker.watch import Step

EVIL = "<script>alert(1)</script>|`*x*`\n"


class Page(HTMLParser):
    """A page's elements, their links to anything, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record."""
    return record(tmp_path / "20260921-000000")


def test_a_page_has_all_that_a_stranger_needs(folder: Path) -> None:
    """Verdict, phases, ceilings, plan, eliminations, budget, facts, method and overhead, in words."""
    page = Page(html_of(diagnosis(folder)))
    for text in (
        "of every training step is lost: more workers would make batches faster",
        "too-few-workers",
        "the loop stands still until its next batch is there",
        "100.0 steps/s",
        "92.5 steps/s (90%: 80.0 to 105.0)",
        "DataLoader(..., num_workers=4)",
        "What it is not",
        "storage-latency",
        "padding-waste",
        "there is no device to copy to",
        "3.0 GiB",
        "8 usable of 8",
        "64.0 MiB of /dev/shm",
        "batches are drawn and not trained on",
        "12 us a step",
        "21.5 s",
    ):
        assert text in page.text, text


def test_what_the_experiments_gave_is_told(folder: Path) -> None:
    """Those that were held, with their figures; those that were not have no row."""
    run = evidence(
        step_with=(4, 0.0123, None), one_thread=0.05, variants={"bfloat16": 0.006}, cores=1.5, foreign=0.25,
        resized=((16, 0.03, 1 << 30),), stub=Stub(nothing=0.04, reads=None, samples=0.001),
        reread=Reread(again=Pass(batches=8, seconds=0.02, cpu=0.01, asked=2e6, disk=1e6), held=1 << 30),
    )  # fmt: skip
    found = diagnosis(folder, run)
    for text in (Page(html_of(found)).text, markdown_of(found)):
        for figure in (
            "12.3 ms",
            "bfloat16",
            "50.0 ms",
            "1.0 GiB at the peak",
            "977 KiB of it from the disk",
        ):
            assert figure in text, figure
        assert "collectives" not in text.replace("what collectives take", "").replace(
            "to the collectives", ""
        )


def test_a_busy_machine_is_said_beside_the_verdict(folder: Path) -> None:
    """Its figures are not the script's alone; so are the plan's own remarks told."""
    found = diagnosis(folder, evidence(foreign=0.62), plan=replace(plan(), notes=("pinning would gain 1%",)))
    for text in (Page(html_of(found)).text, markdown_of(found)):
        assert "Other processes used 0.6 cores meanwhile" in text
        assert "inning would gain 1%" in text
    assert "busy machine" not in html_of(diagnosis(folder, evidence(foreign=0.1)))


def test_a_page_needs_nothing_but_itself(folder: Path) -> None:
    """No script, no link, no address."""
    text = html_of(diagnosis(folder))
    page = Page(text)
    assert page.links == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http://" not in text
    assert "https://" not in text


def test_strings_of_the_user_stay_text(folder: Path) -> None:
    """In a script's path, a loader's name, a note or a reason, in HTML and in Markdown."""
    run = evidence(
        drawn=LoaderFacts(name=EVIL, workers=2, batch_size=32), missing={"replay": EVIL}, compute=None
    )
    found = diagnosis(folder, run, command=("train.py", EVIL), notes=(EVIL,))
    page = Page(html_of(found))
    assert "script" not in page.tags
    assert page.text.count("<script>alert(1)</script>") >= 4
    rendered = Page(github().render(markdown_of(found)))
    assert "script" not in rendered.tags
    assert rendered.text.count("<script>alert(1)</script>") >= 4


def test_what_was_not_measured_is_not_zero(folder: Path) -> None:
    """It reads n/a, with the reason where there is one."""
    run = evidence(
        compute=None, loader=None, loader_with=None, making={}, samples=None, overhead={},
        shares={"wait": None, "copy": 0.0, "forward": 0.3, "backward": 0.6, "update": 0.0, "other": 0.1},
        missing={"replay": "the loop ended before it", "drain": "a record alone"},
    )  # fmt: skip
    page = Page(html_of(diagnosis(folder, run, plan=None, budget=None, method=(), command=())))
    for text in ("the loop ended before it", "a record alone", "n/a", "From a record alone"):
        assert text in page.text
    assert "Plan" not in page.text


@pytest.mark.parametrize(
    ("on_gpu", "why"), [(False, "nothing is computed on a GPU"), (None, "not measured in this diagnosis")]
)
def test_a_copy_that_was_not_measured_has_no_rate_anywhere(
    folder: Path, on_gpu: bool | None, why: str
) -> None:
    """Its ceiling is there by name, with the reason; on the page, in Markdown and in a terminal."""
    found = diagnosis(folder, evidence(missing={}, process={"on_gpu": on_gpu}))
    assert found.to_json()["ceilings"]["copy"] is None
    console = Console(width=200, record=True, file=StringIO())
    show(found, console)
    shown = console.export_text()
    for text in (Page(html_of(found)).text, markdown_of(found), shown):
        assert why in text
    line = next(line for line in shown.splitlines() if line.startswith("copy alone"))
    assert line.split()[:3] == ["copy", "alone", "n/a"]


@pytest.mark.parametrize("cause", ["healthy", "compute-bound", "unknown"])
def test_a_run_without_a_cause_is_told_plainly(folder: Path, cause: str) -> None:
    """A sentence for each of the three verdicts that name no cause."""
    shares = {"wait": 0.01, "forward": 0.5, "backward": 0.49}
    runs = {
        "healthy": evidence(shares=shares, compute=0.0398),
        "compute-bound": evidence(shares=shares, compute=0.0398, cores=7.9),
        "unknown": evidence(making={}, loader=None, compute=None, loader_with=None),
    }
    found = diagnosis(folder, runs[cause])
    assert found.verdict.cause == cause
    told = {
        "healthy": "Nothing that was looked for holds this training up",
        "compute-bound": "The data keeps up",
        "unknown": "nothing that was measured says why",
    }
    assert told[cause] in Page(html_of(found)).text
    assert told[cause] in markdown_of(found)


@pytest.mark.parametrize("cores", [7.9, 1.0])
def test_a_run_without_a_loader_is_not_told_that_its_data_keeps_up(folder: Path, cores: float) -> None:
    """Nobody saw whether it waits for data."""
    run = evidence(shares={"wait": None}, compute=None, loader=None, drawn=None, making={}, cores=cores)
    for text in (Page(html_of(diagnosis(folder, run))).text, markdown_of(diagnosis(folder, run))):
        assert "keeps up" not in text
        assert "waiting for data was not measured" in text


def test_a_cause_that_is_only_possible_is_told_so(folder: Path) -> None:
    """Steps that grow, and nobody saw what goes into them; one that is sure is told without a doubt."""
    grows = {"shares": {"wait": 0.0}, "compute": 0.07, "growth": 3.0, "grown": 0.5}
    doubt = "It is possible that 50% of every training step is lost"
    assert doubt in markdown_of(diagnosis(folder, evidence(**grows)))
    assert "It is possible that" not in markdown_of(diagnosis(folder, evidence(**grows, more_work=1.0)))


def test_a_run_that_stalled_once_is_not_told_that_it_waits_for_data(folder: Path) -> None:
    """Half of the time went into one save; of a script that died before a step there is no share."""
    stalled = evidence(shares={"wait": 0.0}, compute=0.02, stalls=None, rare_stalls=0.5)
    died = evidence(step=inf, steps=0, compute=None, loader=None, loader_with=None, shares={"wait": None})
    for run, said in ((stalled, "50% of the time went into one or two steps"), (died, "The script died")):
        text = markdown_of(diagnosis(folder, run))
        assert said in text
        assert "lost waiting for data" not in text


def test_a_run_that_died_before_its_first_step_has_a_page(tmp_path: Path) -> None:
    """Its step took for ever: no figure is made of that."""
    run = evidence(step=inf, steps=0, compute=None, loader=None, loader_with=None, shares={"wait": None})
    found = diagnosis(record(tmp_path / "died", steps=0), run, plan=replace(plan(), rate=0.0, epoch=inf))
    for text in (Page(html_of(found)).text, markdown_of(found)):
        assert "n/a steps/s" in text
        assert not re.search(r"\b(inf|nan)\b", text)
        assert "n/a of every" not in text
        assert "The script died before a training step could be observed" in text
    console = Console(width=200, record=True, file=StringIO())
    show(found, console)
    assert "n/a steps/s" in console.export_text()


@pytest.mark.parametrize(
    ("offline", "said"),
    [
        (False, "Its network was not shielded: anything that it sent"),
        (True, "It was cut off the network: nothing that it sent has left this machine."),
    ],
)
def test_what_of_the_network_has_lasted_is_said(folder: Path, offline: bool, said: str) -> None:
    """On the page, in Markdown, in a terminal and in JSON: files are not all that a script writes."""
    found = diagnosis(folder, offline=offline)
    console = Console(width=300, record=True, file=StringIO())
    show(found, console)
    page, markdown = Page(html_of(found)).text, markdown_of(found)
    for text in (page, markdown, console.export_text()):
        assert said in " ".join(text.split())
    assert "No file that it wrote has lasted." in page
    assert "Nothing that it wrote" not in page + markdown
    assert found.to_json()["offline"] is offline


def test_a_run_of_days_makes_a_small_page(tmp_path: Path) -> None:
    """Steps are thinned to a bounded number of columns, and each step is in one of them."""
    steps = [
        Step(n, BEGAN + n * 0.5 * (1 + n % 3), 8, 0, 0.1, 0, 0.1, 0.2, 0.05, 0.05) for n in range(30_000)
    ]
    series = thin(iter(steps))
    assert series is not None
    assert len(series.columns) <= MOST_COLUMNS
    assert sum(column.steps for column in series.columns) == len(steps) - 1
    assert all(column.seconds == pytest.approx(0.5) for column in series.columns)
    long = record(tmp_path / "long", steps=20_000, every=1.0)
    assert len(html_of(diagnosis(long, method=()))) < 100_000


def test_steps_longer_than_a_column_leave_no_gaps_and_a_pause_does() -> None:
    """A step's time is drawn up to the one before; what lies between two cells of a notebook is nobody's."""
    ends = [BEGAN + 0.09 * n + (30.0 if n > 100 else 0.0) for n in range(200)]
    series = thin(Step(n, t, 8, 0, 0.08, 0, 0.01, 0, 0, 0) for n, t in enumerate(ends))
    assert series is not None
    drawn = re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", over_time(series, ()).partition("phase-copy")[0])
    spans = sorted({(float(left), float(right)) for left, right in drawn})
    gaps = [right[0] - left[1] for left, right in pairwise(spans) if right[0] > left[1]]
    assert gaps == [pytest.approx(100 * 30 / (series.ended - series.began), abs=2)]


def test_too_few_steps_for_a_picture_are_said(tmp_path: Path) -> None:
    """A record with one step has no picture, and a page all the same."""
    assert "too few steps for a picture" in html_of(diagnosis(record(tmp_path / "short", steps=1)))


def test_a_notebook_gets_the_content_without_a_document(folder: Path) -> None:
    """A fragment whose style touches nothing outside of it."""
    text = inline(diagnosis(folder))
    assert not {"html", "head", "body", "script"} & set(Page(text).tags)
    style = text.partition("<style>")[2].partition("</style>")[0]
    rules = [line for line in style.splitlines() if line.rstrip().endswith("{") and not line.startswith("@")]
    assert rules
    assert all(line.strip().startswith(".stoker-report") for line in rules)


def test_markdown_is_what_github_renders(folder: Path) -> None:
    """Tables are tables, with as many cells in each row, and what is folded away is Markdown inside."""
    text = markdown_of(diagnosis(folder))
    rendered = Page(github().render(text))
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert rendered.tags.count("table") == len(tables) >= 8
    for lines in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, lines
    assert rendered.tags.count("details") == rendered.tags.count("summary") >= 5
    assert "|" not in rendered.text.replace("||", "")
    assert "num_workers=4" in rendered.text


def github() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable("table")


def test_a_report_is_written_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up leaves the old one and no draft."""
    found = diagnosis(folder)
    place = write(found)
    before = place.read_text()
    assert place == folder / "report.html"

    def fails(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(NotPermitted, match="No space left on device; name another place"):
        write(replace(found, seconds=1.0))
    assert place.read_text() == before
    assert sorted(path.name for path in folder.iterdir()) == ["rank0", "report.html", "run.json"]


def test_a_place_for_a_report_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """A script in its place would be written over; a folder or one that is not there cannot be written."""
    for path, said in (
        (tmp_path / "train.py", "ends in .html or .md"),
        (tmp_path / "absent" / "x.html", "there is no folder"),
    ):
        with pytest.raises(UsageError, match=said):
            check_place(path)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        check_place(tmp_path / "folder.html")


def test_the_verb_writes_the_report_and_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a record alone, beside it; elsewhere where told; not at all where not wanted."""
    words = [str(folder)]
    command.diagnose(words, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(folder / "report.html")
    assert "From a record alone" in (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    command.diagnose(words, markdown=True, report=folder.parent / "it.md")
    out, err = capsys.readouterr()
    assert out == (folder.parent / "it.md").read_text()
    assert str(folder.parent / "it.md") in err
    command.diagnose(words, no_report=True)
    assert "report:" not in capsys.readouterr().out
    assert not (folder / "report.html").exists()
    with pytest.raises(UsageError, match="both want stdout"):
        command.diagnose(words, as_json=True, markdown=True)
    with pytest.raises(UsageError, match="contradict"):
        command.diagnose(words, report=folder / "x.html", no_report=True)


def test_a_verdict_is_told_where_its_report_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason; it is an error only where the place was asked for."""

    def refuse(*_: object) -> Path:
        raise NotPermitted("the report cannot be written to there: Permission denied")

    monkeypatch.setattr(command, "write", refuse)
    command.diagnose([str(folder)])
    told = capsys.readouterr().out
    assert "where the step goes" in told
    assert "Permission denied" in told
    with pytest.raises(NotPermitted, match="Permission denied"):
        command.diagnose([str(folder)], report=folder.parent / "it.html")
    assert "where the step goes" in capsys.readouterr().out


def test_the_method_is_told_by_the_messages_of_a_run() -> None:
    """A part is over when its message comes; a kind that nobody has named here is told all the same."""
    said: list[tuple[str, float, dict[str, float]]] = [
        ("started", 0.5, {}),
        ("progress", 0.9, {}),
        ("began", 2.0, {"t": 1002.0}),
        ("observed", 8.0, {"t": 1008.0}),
        ("reread", 9.5, {}),
        ("finished", 9.6, {}),
    ]
    found = stretches(Message(kind=kind, body=body, at=at) for kind, at, body in said)
    assert [(one.name, one.seconds, one.began) for one in found] == [
        ("start and warm-up", 1.5, 1000.5),
        ("observe", 6.0, 1002.0),
        ("reread", 1.5, 1008.0),
    ]
