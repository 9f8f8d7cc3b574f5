"""The page in a real Chromium, before a real server: submit, watch live, cancel, resume, compare, read."""

import json
import re
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs import server
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding

from .browsing import Site, Visit, chromium, expect, go_through, settings_of
from .kit import counting

# The longest of them starts two trainings and a doctor: 71 s beside other tests, on two cores.
pytestmark = [pytest.mark.browser, pytest.mark.service, pytest.mark.timeout(400)]

WEB = Path(server.__file__).parent.parent / "web"
EVIL = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all."""
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for most, with a script that writes markup into its log."""
    folder = tmp_path_factory.mktemp("site")
    scripts = folder / "own"
    scripts.mkdir()
    (scripts / "markup.py").write_text(f"print({EVIL!r})\n")
    running = Site(settings_of(folder / "jobs", scripts))
    yield running
    running.close()


def ended(browser: Any, site: Site, id_: str) -> None:
    """Wait for a job's end, as a reader of its page does."""
    visit = Visit(browser, site, f"#/jobs/{id_}")
    expect(visit.state()).to_have_text(re.compile("done|failed|cancelled|lost"))
    visit.page.close()


@pytest.fixture(scope="module")
def two(browser: Any, site: Site) -> tuple[str, str]:
    """Two runs of a script that have ended, with curves of 40 and of 20 steps."""
    ids = site.submit("forty steps", "40", "0.01", "10"), site.submit("twenty steps", "20", "0.01", "10")
    for one in ids:
        ended(browser, site, one)
    return ids


def fill_form(page: Any) -> None:
    """A small training of a workload that lasts long enough to be stopped."""
    page.get_by_label("What to run").select_option("workload:heimdall")
    page.get_by_label("Name", exact=True).fill("from the form")
    for name, value in {
        "width": "8",
        "layers": "1",
        "heads": "1",
        "epochs": "2000",
        "batch size": "16",
    }.items():
        page.get_by_label(name, exact=True).fill(value)
    page.get_by_label("log every", exact=True).fill("1")
    page.get_by_label("loggers", exact=True).fill("")
    page.get_by_label("device", exact=True).select_option("cpu")
    page.get_by_label("preflight", exact=True).uncheck()
    page.get_by_label("picture", exact=True).uncheck()
    page.get_by_text("made", exact=True).click()
    page.get_by_label("samples", exact=True).fill("64")


def test_a_job_is_submitted_watched_cancelled_and_resumed(browser: Any, site: Site) -> None:
    """From a form to a report, without a reload: its curve grows, a cancel saves, a resume goes on."""
    visit = Visit(browser, site, "#/new")
    page = visit.page
    fill_form(page)
    visit.press("Submit")
    expect(visit.heading()).to_have_text("from the form")
    expect(visit.state()).to_have_text("running")
    visit.wait_for_step(2)
    first = page.locator("main > .progress").inner_text()
    assert re.fullmatch(r"\d+%", first)
    visit.wait_for_step(5)
    expect(page.locator(".facts")).to_contain_text("samples/s")
    expect(page.locator(".facts")).to_contain_text("of 6,000")
    visit.press("Cancel")
    expect(visit.state()).to_have_text("cancelled")
    expect(page.locator("#said")).to_have_text("from the form is cancelled")
    id_ = page.url.rpartition("/")[2]
    kept = site.ask(f"/jobs/{id_}")["step"]
    assert kept >= 5
    visit.press("Resume")
    expect(visit.state()).to_have_text("running")
    visit.wait_for_step(kept + 2)
    visit.press("Cancel")
    expect(visit.state()).to_have_text("cancelled")
    expect(page.get_by_role("row", name=re.compile(f"2 cancelled {kept:,} to "))).to_be_visible()
    points = site.ask(f"/jobs/{id_}/metrics?limit=5000&name=train/loss")["points"]
    steps = sorted(point["step"] for point in points)
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] > kept
    page.get_by_role("button", name=re.compile("Run the doctor|Show why it is healthy")).click()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Open the report").click()
    expect(opened.value.get_by_role("heading", level=1)).to_be_visible()
    expect(opened.value.get_by_text("What it is not")).to_be_visible()
    assert visit.said == []
    opened.value.close()
    page.close()


def test_a_wrong_setting_is_told_where_it_stands(browser: Any, site: Site) -> None:
    """By the page where it is no number, by the server where it is no good one; with the focus on it."""
    visit = Visit(browser, site, "#/new")
    page = visit.page
    page.get_by_label("What to run").select_option("workload:heimdall")
    page.get_by_label("epochs", exact=True).fill("many")
    visit.press("Submit")
    expect(page.get_by_label("epochs", exact=True)).to_be_focused()
    expect(page.get_by_text("many is not a whole number, 1 or more")).to_be_visible()
    page.get_by_label("epochs", exact=True).fill("1")
    page.get_by_label("heads", exact=True).fill("3")
    visit.press("Submit")
    expect(page.get_by_text(re.compile("width is 64.* heads 3: "))).to_be_visible()
    expect(page.get_by_label("width", exact=True)).to_be_focused()
    expect(page.get_by_label("width", exact=True)).to_have_attribute("aria-invalid", "true")
    assert page.url.endswith("#/new")
    page.close()


def test_what_is_sent_is_what_differs_from_the_defaults(browser: Any, site: Site) -> None:
    """A form that nobody touched asks for the defaults; the same press twice is one job."""
    visit = Visit(browser, site, "#/new")
    page = visit.page
    page.get_by_label("What to run").select_option("script:scripts/count.py")
    page.get_by_label("Name", exact=True).fill("by line")
    page.get_by_label("arguments", exact=True).fill("3\n0.01\n1\n")
    with page.expect_request(lambda request: request.method == "POST") as sent:
        page.get_by_role("button", name="Submit").dblclick()
    told = sent.value.post_data_json
    assert told == {"job_name": "by line", "script": "scripts/count.py", "arguments": ["3", "0.01", "1"]}
    expect(visit.heading()).to_have_text("by line")
    assert len(site.ask("/jobs?name=by%20line")["jobs"]) == 1
    expect(visit.state()).to_have_text("done")
    page.get_by_role("link", name="Copy and edit").click()
    expect(page.get_by_label("arguments", exact=True)).to_have_value("3\n0.01\n1")
    page.get_by_label("What to run").select_option("workload:sar")
    with page.expect_request(lambda request: request.method == "POST") as sent:
        visit.press("Submit")
    assert sent.value.post_data_json == {"job_name": "by line", "workload": "sar", "config": {}}
    expect(visit.heading()).to_have_text("by line")
    visit.press("Cancel")
    expect(visit.state()).to_have_text("cancelled")
    page.close()


def test_the_list_moves_by_itself(browser: Any, site: Site) -> None:
    """A job that someone else submits appears, goes on and ends, and is told to those who listen."""
    visit = Visit(browser, site)
    expect(visit.page.locator("#connection")).to_have_text("live")
    site.submit("of someone else", "30", "0.02", "10")
    row = visit.page.get_by_role("row", name=re.compile("of someone else"))
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("done")
    expect(row).to_contain_text("step 30")
    expect(visit.page.locator("#said")).to_have_text("of someone else is done")
    assert visit.said == []
    visit.page.close()


def test_jobs_are_found_by_state_and_name(browser: Any, site: Site, two: tuple[str, str]) -> None:
    """The filters are in the address, so that it can be kept; what does not match is not shown."""
    visit = Visit(browser, site)
    visit.page.get_by_label("Name", exact=True).fill("FORTY")
    expect(visit.page.locator("tbody tr")).to_have_count(1)
    assert visit.page.url.endswith("#/?name=FORTY")
    visit.page.get_by_label("State", exact=True).select_option("queued")
    expect(visit.page.get_by_text("No job matches these filters.")).to_be_visible()
    visit.page.reload()
    expect(visit.page.get_by_label("State", exact=True)).to_have_value("queued")
    expect(visit.page.get_by_label("Name", exact=True)).to_have_value("FORTY")
    visit.page.close()


def test_older_jobs_come_when_they_are_asked_for(browser: Any, site: Site) -> None:
    """Fifty at first; the rest behind a button, each job once."""
    store = Store.open(site.settings.store_url)
    for number in range(60):
        store.ask_cancel(store.create(counting(name=f"many {number:02}")).id)
    store.close()
    visit = Visit(browser, site, "#/?name=many")
    rows = visit.page.locator("tbody tr")
    expect(rows).to_have_count(50)
    visit.press("Older jobs")
    expect(rows).to_have_count(60)
    names = visit.page.locator("tbody th a").all_inner_texts()
    assert names == [f"many {number:02}" for number in reversed(range(60))]
    expect(visit.page.get_by_role("button", name="Older jobs")).to_be_hidden()
    visit.page.close()


def test_runs_are_compared(browser: Any, site: Site, two: tuple[str, str]) -> None:
    """Chosen in the list: their curves in one chart, their last values, and what differs between them."""
    visit = Visit(browser, site, "#/?name=steps")
    page = visit.page
    for name in ("forty steps", "twenty steps"):
        page.get_by_label(f"compare {name}").check()
    visit.press("Compare 2 jobs")
    expect(visit.heading()).to_have_text("Compare")
    chart = page.locator(".chart")
    expect(chart.locator(".legend li")).to_have_count(2)
    expect(chart.locator(".plot canvas")).to_be_visible()
    told = chart.locator(".plot").get_attribute("aria-label")
    assert "forty steps: 0.025 at step 40" in told
    assert "twenty steps: 0.05 at step 20" in told
    expect(page.get_by_role("row").filter(has_text="last train/loss")).to_contain_text("0.025")
    expect(page.get_by_role("row").filter(has_text="arguments")).to_contain_text('["20","0.01","10"]')
    assert visit.said == []
    page.close()


def test_the_doctor_is_offered_by_what_the_verdict_says(
    browser: Any, site: Site, two: tuple[str, str]
) -> None:
    """To find what is wrong, or to show why nothing is; not for a job that never ran."""
    store = Store.open(site.settings.store_url)
    waiting = store.create(counting(name="waits"))
    store.ask_cancel(waiting.id)
    gpu = {"index": 1, "name": "H200", "total_bytes": 100 << 30, "used_bytes": 25 << 30, "power_w": None}
    visit = Visit(browser, site, f"#/jobs/{two[1]}")
    expect(visit.page.get_by_role("button", name="Run the doctor")).to_be_visible()
    token = store.job(two[1]).attempts[-1].token
    Holding(store).judge(two[1], token, {"cause": "healthy", "share": 0.0, "sentence": "healthy: no waits"})
    with store.database.transaction() as do:
        values = (json.dumps({**gpu, "utilisation_percent": 50}), two[1])
        do.write("UPDATE jobs SET gpu = ? WHERE id = ?", values)
        store.note(do, two[1], "progress", {})
    expect(visit.page.get_by_role("button", name="Show why it is healthy")).to_be_visible()
    expect(visit.page.get_by_text("H200.")).to_be_visible()
    expect(visit.page.get_by_role("meter", name="GPU busy")).to_have_attribute("aria-valuetext", "50%")
    told = visit.page.get_by_role("meter", name="GPU memory")
    expect(told).to_have_attribute("aria-valuetext", "25.0 GiB of 100 GiB")
    visit.page.close()
    visit = Visit(browser, site, f"#/jobs/{waiting.id}")
    expect(visit.state()).to_have_text("cancelled")
    expect(visit.page.locator(".card button")).to_be_hidden()
    assert visit.said == []
    visit.page.close()
    store.close()


def test_a_chart_is_walked_by_keys(browser: Any, site: Site, two: tuple[str, str]) -> None:
    """Left and right go along the steps, and the value there is written out."""
    visit = Visit(browser, site, f"#/jobs/{two[0]}")
    visit.wait_for_step(40)
    chart = visit.page.locator(".chart")
    chart.locator(".plot").focus()
    for key, step in (("End", 40), ("ArrowLeft", 39), ("ArrowLeft", 38)):
        visit.page.keyboard.press(key)
        expect(chart.locator("figcaption")).to_have_text(f"lossstep {step}")
    expect(chart.locator(".legend")).to_have_text("train 0.02632")
    visit.page.close()


def test_markup_is_text(browser: Any, site: Site, two: tuple[str, str]) -> None:
    """A name, a log and settings that would run something are shown as they are written, and run nothing."""
    id_ = site.submit(EVIL, EVIL, script="own/markup.py")
    ended(browser, site, id_)
    for where, holders in (
        (f"#/jobs/{id_}", {"h1": EVIL, ".log": EVIL, ".settings": json.dumps(EVIL)}),
        ("", {"tbody": EVIL}),
        ("#/compare", {".choose": EVIL}),
        (f"#/compare/{id_},{two[0]}", {".beside >> nth=0": EVIL}),
    ):
        visit = Visit(browser, site, where)
        for holder, text in holders.items():
            expect(visit.page.locator(holder)).to_contain_text(text)
        assert visit.page.locator("main img, main script").count() == 0
        assert visit.page.title() != "taken"
        assert visit.said == []
        visit.page.close()


def test_a_page_that_was_not_answered_at_first_asks_again(
    browser: Any, site: Site, two: tuple[str, str]
) -> None:
    """A busy server, or one that is started again as the page loads: log and curves come all the same."""
    visit = Visit(browser, site)
    refused: list[str] = []

    def refuse_once(route: Any) -> None:
        if len(refused) < 2:
            refused.append(route.request.url)
            route.fulfill(status=503, json={"detail": "the store does not answer"})
        else:
            route.continue_()

    visit.page.route("**/logs?last=2000", refuse_once)
    visit.page.goto(f"{site.url}/#/jobs/{two[0]}")
    expect(visit.page.get_by_text("the store does not answer")).to_be_visible()
    expect(visit.page.locator(".log .line").first).to_contain_text("goes on from step 0")
    expect(visit.page.get_by_text("the store does not answer")).to_have_count(0)
    assert last_step(visit) > 0 and len(refused) == 2
    visit.page.close()


def test_a_page_goes_on_when_its_server_comes_back(browser: Any, tmp_path: Path) -> None:
    """Killed and started again: the page says so, and has every point of the time between."""
    site = Site(settings_of(tmp_path / "jobs"))
    try:
        id_ = site.submit("through a crash", "2000", "0.1", "10")
        visit = Visit(browser, site, f"#/jobs/{id_}")
        visit.wait_for_step(10)
        site.kill()
        expect(visit.page.locator("#connection")).to_have_text("connection lost, trying again")
        before = last_step(visit)
        site.start()
        expect(visit.page.locator("#connection")).to_have_text("live")
        visit.wait_for_step(before + 20)
        visit.press("Cancel")
        expect(visit.state()).to_have_text("cancelled")
        chart = visit.page.locator(".chart")
        visit.page.mouse.move(0, 0)
        chart.locator(".plot").focus()
        shown = []
        for key in ("End", *["ArrowLeft"] * (last_step(visit) - 1)):
            visit.page.keyboard.press(key)
            shown.append(int(re.sub(r"\D", "", chart.locator("figcaption").inner_text())))
        assert shown == list(range(shown[0], 0, -1))
        assert shown[0] > before + 20
        visit.page.close()
    finally:
        site.close()


def last_step(visit: Visit) -> int:
    """As the chart's own words have it."""
    told = visit.page.locator(".plot").get_attribute("aria-label")
    found = re.search(r"at step ([\d,]+)", told)
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.slow
def test_the_same_is_done_with_postgresql(browser: Any, tmp_path: Path, postgres_url: str) -> None:
    """Submit, watch, cancel, resume and compare, with the history in a real PostgreSQL."""
    site = Site(replace(settings_of(tmp_path / "jobs"), store=postgres_url))
    try:
        go_through(browser, site)
    finally:
        site.close()


def test_a_token_is_asked_for(browser: Any, tmp_path: Path) -> None:
    """Where there is one, nothing is shown without it; a wrong one is told, the right one asked for once."""
    make = [sys.executable, "-m", "stoker", "jobs", "token", "me", "--root", str(tmp_path / "jobs")]
    token = subprocess.run(make, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    site = Site(settings_of(tmp_path / "jobs"))
    try:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            site.ask("/jobs")
        visit = Visit(browser, site)
        dialog = visit.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Not now").click()
        expect(visit.page.get_by_text("Load the page again to give it.")).to_be_visible()
        visit.page.reload()
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Go on").click()
        expect(dialog.get_by_role("alert")).to_have_text("That is not its token.")
        dialog.get_by_label("Token").fill(token)
        dialog.get_by_role("button", name="Go on").click()
        expect(visit.page.get_by_text("There are no jobs yet.")).to_be_visible()
        visit.page.reload()
        expect(visit.page.get_by_text("There are no jobs yet.")).to_be_visible()
        assert not dialog.is_visible()
        visit.page.close()
    finally:
        site.close()


def test_a_job_is_deleted_when_it_is_confirmed(browser: Any, site: Site) -> None:
    """Asked first; then it is gone from the list, and its address says so."""
    id_ = site.submit("to be forgotten", "1", "0.01", "1")
    ended(browser, site, id_)
    visit = Visit(browser, site, f"#/jobs/{id_}")
    visit.press("Delete")
    dialog = visit.page.get_by_role("dialog", name="Delete to be forgotten?")
    dialog.get_by_role("button", name="Not now").click()
    expect(visit.heading()).to_have_text("to be forgotten")
    visit.press("Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(visit.heading()).to_have_text("Jobs")
    expect(visit.page.get_by_role("link", name="to be forgotten")).to_have_count(0)
    gone = Visit(browser, site, f"#/jobs/{id_}")
    expect(gone.heading()).to_have_text("There is no such job")
    for one in (visit, gone):
        one.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_every_page_can_be_read(
    browser: Any, site: Site, two: tuple[str, str], width: int, scheme: str
) -> None:
    """Nothing wider than the screen, nothing faint, a name for all that is used, nothing from elsewhere."""
    for where, there in (
        ("#/?name=steps", "forty steps"),
        (f"#/jobs/{two[0]}", "Where the step goes"),
        (f"#/compare/{','.join(two)}", "Settings that differ"),
        ("#/new", "batch size"),
        ("#/nowhere", "There is no such page"),
    ):
        visit = Visit(browser, site, where, width=width, scheme=scheme)
        expect(visit.page.get_by_text(there).first).to_be_visible()
        assert not visit.is_too_wide(), where
        assert visit.faint() == [], where
        assert visit.nameless() == [], where
        assert all(address.startswith(site.url) for address in visit.asked)
        assert visit.said == []
        visit.page.close()


def test_it_is_used_without_a_mouse(browser: Any, site: Site, two: tuple[str, str]) -> None:
    """The first key leads past the links, a followed link to the heading of its page."""
    visit = Visit(browser, site, "#/?name=forty")
    expect(visit.page.get_by_role("link", name="forty steps")).to_be_visible()
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("main")).to_be_focused()
    visit.page.get_by_role("link", name="forty steps").focus()
    visit.page.keyboard.press("Enter")
    expect(visit.heading()).to_have_text("forty steps")
    expect(visit.heading()).to_be_focused()
    visit.page.close()


def test_nothing_is_made_of_markup() -> None:
    """No file parses text as markup or code, or names another host; the page has no inline script."""
    parsing = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser"
    )
    for path in WEB.glob("*.js"):
        text = path.read_text()
        assert not parsing.search(text), path
        assert "http://" not in text and "https://" not in text, path
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page) == []
