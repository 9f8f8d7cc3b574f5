"""A search's report: every outcome is drawn on one scale, and the page works alone in a real Chromium."""

import json
import shutil
from collections.abc import Iterator
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.examination import Diagnosis
from stoker.doctor.model import Interval
from stoker.doctor.verdict import reach
from stoker.errors import NotPermitted
from stoker.tune import command, page, words
from stoker.tune.comparison import Ratio
from stoker.tune.finding import Found
from stoker.tune.pictures import Scale, scale_of, search
from stoker.tune.search import Candidate
from stoker.tune.tuned import Outcome, Tried, Tuned

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EVIL = "<script>document.title = 'taken'</script>.py"
RUN = Evidence(
    step=0.04,
    shares={"wait": 0.75, "forward": 0.1, "backward": 0.1, "update": 0.05, "copy": 0.0, "other": 0.0},
    steps=100,
    samples=32.0,
    compute=0.01,
    loader=0.04,
    loader_with=(2, 0.02),
    drawn=LoaderFacts(name="DataLoader", workers=1, batch_size=32, prefetch=2, length=100),
    making={"batches": 50, "read": 0.04, "cpu": 0.002},
    host={"usable_cores": 4.0},
    cores=0.2,
)


def around(mid: float, width: float = 1.1) -> Ratio:
    return Ratio(low=mid / width, mid=mid, high=mid * width)


def tried(
    change: str, value: Any, outcome: Outcome, total: Ratio | None, predicted: float | None, reason: str = ""
) -> Tried:
    told = None if predicted is None else Interval(low=predicted / 1.3, mid=predicted, high=predicted * 1.3)
    return Tried(
        candidate=Candidate(change=change, value=value, why="the loop waits", predicted=told),
        settings={change: value},
        outcome=outcome,
        reason=reason,
        ratio=total,
        total=total,
        rate=None if total is None else 800 * total.mid,
        runs=2,
    )


TRIED = (
    tried("num_workers", 4, "kept", around(2.3), 2.1, "40 losses are bit-identical"),
    tried("num_workers", 8, "not faster", around(2.2), 2.6),
    tried("num_workers", 16, "guarded", None, 2.6, "stopped: 1.2 GiB of memory would be left"),
    tried("prefetch_factor", 4, "open", Ratio(low=0.0, mid=2.35, high=inf), 2.1),
    tried("feed", "ram", "refused", around(3.1), 2.3, "the first batch has other samples"),
    tried("pin_memory", True, "broken", None, None, "failed: exit code 1: RuntimeError"),
)
KEPT = Tuned(
    settings={"num_workers": 4},
    baseline=800.0,
    best=1840.0,
    unit="sample",
    ratio=around(2.3),
    tried=TRIED,
    not_tried=("tf32: of kind numerics; allow it", "compile: of kind numerics; allow it", "feed: it is long"),
    stopped="nothing more is worth trying",
    runs=9,
)


def found(folder: Path, tuned: Tuned = KEPT) -> Found:
    diagnosis = Diagnosis(
        verdict=reach(RUN), evidence=RUN, record=folder, seconds=9.0, shield="full", notes=("a note",)
    )
    return Found(command=(EVIL, "--lr"), diagnosis=diagnosis, tuned=tuned, folder=folder, seconds=60.0)


def test_the_page_tells_what_was_tried_and_how_good_predictions_were(tmp_path: Path) -> None:
    """Measured beside predicted, which of them the interval held, and what was not tried, by reason."""
    text = page.document(found(tmp_path), Path("stoker.toml"))
    assert "2.30 times as fast, measured (2.09 to 2.53)" in text
    assert "num_workers = 4" in text
    assert "3 of 4 measured ratios" in text
    assert "outside" in text
    assert "+18%" in text  # 2.6 predicted, 2.2 measured
    assert "tf32, compile: of kind numerics" in text
    assert "1.2 GiB of memory would be left" in text
    assert "(interval not known)" in text
    assert "<script>" not in text


def test_a_search_that_keeps_nothing_says_so(tmp_path: Path) -> None:
    """Without settings to use, and without a picture of nothing."""
    none = Tuned(**{**vars(KEPT), "settings": {}, "ratio": None, "tried": (), "best": 800.0})
    text = page.document(found(tmp_path, none))
    assert "the script stays as it is" in text
    assert "What is kept" not in text
    assert "<svg" not in text


def test_one_scale_holds_all_and_a_far_ceiling_is_told_beside() -> None:
    """Unbounded intervals do not stretch it; round ratios stand at its ticks."""
    near, far = scale_of(KEPT, 4.0), scale_of(KEPT, 120.0)
    assert near.low < 0.95
    assert 4.0 < near.high < 5.0
    assert far.high < 6.0
    assert 0 == near.at(0.01) < near.at(1.0) < near.at(2.0) < near.at(4.0) < near.at(500.0) == 100
    assert near.ticks == (1.0, 1.5, 2.0, 3.0, 4.0)
    assert Scale(low=0.9, high=60.0).ticks == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    assert "120x, lies beyond the right edge" in search(KEPT, 120.0)
    assert "computing alone: 4.00x" in search(KEPT, 4.0)


def test_the_same_is_printed_with_the_reports_place(tmp_path: Path) -> None:
    """The finder that writes no settings says what to write."""
    console = Console(record=True, width=200, file=StringIO())
    words.show(found(tmp_path), None, tmp_path / "report.html", console)
    said = console.export_text()
    assert "to use in stoker.toml: [changes] num_workers = 4" in said
    assert f"report: {tmp_path / 'report.html'}" in said
    assert "the diagnosis: a note" in said
    assert "guarded: stopped: 1.2 GiB" in said


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all; without one these tests fail, and say how to have it."""
    chrome = next((path for path in map(shutil.which, NAMES) if path), None)
    if chrome is None:
        pytest.fail("no Chromium on PATH: apt-get install chromium, or leave these out with -m 'not browser'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container's root may not make the sandbox; the page is our own file.
        chromium = playwright.chromium.launch(executable_path=chrome, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_loads_alone_and_the_search_is_drawn(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    """One file asked for, nothing on the console, nothing wider than the screen; a row for each, in order."""
    report = page.write(found(tmp_path), Path("stoker.toml"))
    said: list[str] = []
    asked: list[str] = []
    shown = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    shown.on("console", lambda message: said.append(message.text))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(report.as_uri())
    assert (said, asked) == ([], [report.as_uri()])
    assert shown.title() == f"tuned: {EVIL} --lr"
    across = shown.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert across[0] <= across[1]
    rows = shown.locator(".search .row")
    assert rows.count() == 1 + len(TRIED)
    tops = [rows.nth(at).bounding_box()["y"] for at in range(rows.count())]
    assert tops == sorted(tops)
    assert [rows.nth(at).locator("path.dot").count() for at in range(rows.count())] == [1, 1, 1, 0, 1, 1, 0]
    one, kept = (rows.nth(at).locator("path.dot").bounding_box()["x"] for at in (0, 1))
    limit = rows.nth(1).locator("path.limit").bounding_box()["x"]
    assert one < kept < limit
    for outcome in ("kept", "not faster", "guarded", "open", "refused", "broken"):
        assert shown.locator(".outcome", has_text=outcome).first.is_visible(), outcome
    labels = shown.locator("svg.track").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert labels[1] == "num_workers = 4: measured 2.30x (2.09 to 2.53), predicted 2.10x (1.62 to 2.73); kept"
    shown.close()


def test_what_was_found_is_told_where_its_report_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is gone: the figures come all the same, then the error."""
    with pytest.raises(NotPermitted, match="the report cannot be written"):
        command._tell(found(tmp_path / "gone"), None, True)
    printed = capsys.readouterr().out
    assert "Infinity" not in printed  # which is no JSON
    told = json.loads(printed)
    assert (told["settings"], told["report"]) == ({"num_workers": 4}, None)
