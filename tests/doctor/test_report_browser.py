"""The report in a real headless Chromium: it loads whole from one file, reads well wide, narrow and dark."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from diagnoses import diagnosis, evidence, record

from stoker.doctor.report import write

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EVIL = "<script>document.title = 'taken'</script>.py"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all; without one these tests fail, and say how to have it."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.fail("no Chromium on PATH: apt-get install chromium, or leave these out with -m 'not browser'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container's root may not make the sandbox; the page is our own file.
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with a cause, a plan, and a name that would be a script if it were not text."""
    folder = record(tmp_path_factory.mktemp("report") / "run")
    run = evidence(missing={"copy": "there is no device to copy to"})
    return write(diagnosis(folder, run, command=(EVIL, "--name", "x" * 200)))


class Visit:
    """A page that was opened, and what went wrong on it."""

    def __init__(self, browser: Any, report: Path, width: int, scheme: str) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(report.as_uri())

    def shown(self, text: str) -> bool:
        return bool(self.page.get_by_text(text, exact=False).first.is_visible())


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_a_page_loads_alone_and_is_readable(browser: Any, report: Path, width: int, scheme: str) -> None:
    """No request but for itself, nothing on the console, nothing wider than the screen; the text is there."""
    visit = Visit(browser, report, width, scheme)
    assert visit.said == []
    assert visit.asked == [report.as_uri()]
    assert visit.page.title().startswith("too-few-workers: <script>")
    for text in (
        "of every training step is lost: more workers",
        "the loop stands still until its next batch is there",
        "92.5 steps/s (90%: 80.0 to 105.0)",
        "What it is not",
        "there is no device to copy to",
        "Observing cost 12 us a step",
    ):
        assert visit.shown(text), text
    across = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert across[0] <= across[1]
    visit.page.close()


def test_dark_is_dark_and_light_is_light(browser: Any, report: Path) -> None:
    """Text stands out from what is behind it in both: 7 to 1, by the web's rule for contrast."""
    for scheme in ("light", "dark"):
        visit = Visit(browser, report, 1280, scheme)
        text, page = visit.page.evaluate(
            "(() => { const s = getComputedStyle(document.querySelector('.stoker-report'));"
            " return [s.color, s.backgroundColor] })()"
        )
        lighter, darker = sorted((luminance(text), luminance(page)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) > 7
        assert (luminance(page) < 0.1) == (scheme == "dark")
        visit.page.close()


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_pictures_have_a_size_and_say_what_they_show(browser: Any, report: Path) -> None:
    """The step in total, over time, and the rates: drawn, and told to those who do not see them."""
    visit = Visit(browser, report, 1280, "light")
    pictures = visit.page.locator("svg[role=img]")
    assert pictures.count() >= 5
    for at in range(pictures.count()):
        box = pictures.nth(at).bounding_box()
        assert box["width"] > 300
        assert box["height"] > 10
        assert pictures.nth(at).get_attribute("aria-label")
    waits = visit.page.locator("svg.plot path.phase-wait").bounding_box()
    assert waits["height"] > 0.6 * visit.page.locator("svg.plot").bounding_box()["height"]
    visit.page.close()


def test_a_page_prints(browser: Any, report: Path) -> None:
    """On paper it is dark on white whatever the screen is, and a few pages long."""
    visit = Visit(browser, report, 1280, "dark")
    assert visit.page.pdf()[:5] == b"%PDF-"
    visit.page.emulate_media(media="print")
    colour = visit.page.evaluate("getComputedStyle(document.querySelector('.stoker-report')).color")
    assert colour == "rgb(0, 0, 0)"
    visit.page.close()
