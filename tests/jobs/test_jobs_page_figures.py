"""What the page says is so, and stays so: copies, times, places in the queue, a connection that has gone."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs.job import Request
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding

from .browsing import Site, Visit, chromium, expect, settings_of
from .kit import COUNT, counting, tiny_heimdall
from .servers import Live, running

pytestmark = [pytest.mark.browser, pytest.mark.service, pytest.mark.timeout(400)]
GIB = 1 << 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all."""
    with chromium() as opened:
        yield opened


def sent(visit: Visit) -> Any:
    """What the form sends when it is submitted."""
    with visit.page.expect_request(lambda request: request.method == "POST") as asked:
        visit.press("Submit")
    return asked.value.post_data_json


# --- a copy -----------------------------------------------------------------------------------------------


def test_a_copy_runs_the_same_script(browser: Any, tmp_path: Path) -> None:
    """One of a folder inside an allowed one too, beside another of the same end that is allowed as well."""
    for folder in ("exp/sub", "sub"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "t.py").write_text("print('here')\n")
    with running(tmp_path / "jobs", scripts=(tmp_path / "sub", tmp_path / "exp")) as live:
        made = live.post("/jobs", {"script": "exp/sub/t.py", "job_name": "deep"}).json
        visit = Visit(browser, live, f"#/jobs/{made['id']}")
        expect(visit.page.locator(".facts")).to_contain_text("exp/sub/t.py")
        visit.page.get_by_role("link", name="Copy and edit").click()
        expect(visit.page.get_by_label("What to run")).to_have_value("script:exp/sub/t.py")
        assert sent(visit)["script"] == "exp/sub/t.py"
        expect(visit.heading()).to_have_text("deep")
        scripts = [one["script"] for one in live.get("/jobs").json["jobs"]]
        assert scripts == [str(tmp_path / "exp/sub/t.py")] * 2
        assert visit.said == []
        visit.page.close()


def test_a_copy_needs_what_the_first_needed(browser: Any, server: Live) -> None:
    """No card where it had none; the memory to the byte; what is changed is sent as it was changed."""
    needs: dict[str, Any] = {"gpus": 0, "vram_bytes": 5 * GIB // 2, "ram_bytes": GIB // 4 + 1}
    job = server.store.create(Request(name="frugal", script=COUNT, arguments=("1", "0", "1"), **needs))
    visit = Visit(browser, server, f"#/new?from={job.id}")
    expect(visit.page.get_by_label("GPUs", exact=True)).to_have_value("0")
    assert {name: value for name, value in sent(visit).items() if name in needs} == needs
    expect(visit.heading()).to_have_text("frugal")
    visit.page.get_by_role("link", name="Copy and edit").click()
    visit.page.get_by_label("Free GPU memory, GiB").fill("")
    visit.page.get_by_label("Free memory, GiB", exact=True).fill("0.5")
    told = sent(visit)
    assert "vram_bytes" not in told and told["ram_bytes"] == GIB // 2
    assert visit.said == []
    visit.page.close()


def test_a_copy_for_another_device_needs_what_its_settings_say(browser: Any, server: Live) -> None:
    """A number of cards that belonged to other settings is not sent with the new ones."""
    job = server.store.create(tiny_heimdall())
    visit = Visit(browser, server, f"#/new?from={job.id}")
    expect(visit.page.get_by_label("GPUs", exact=True)).to_have_value("0")
    visit.page.get_by_label("device", exact=True).select_option("auto")
    expect(visit.page.get_by_label("GPUs", exact=True)).to_have_value("")
    assert "gpus" not in sent(visit)
    visit.page.close()


def test_a_need_that_cannot_be_met_is_told_at_its_field(browser: Any, server: Live) -> None:
    """More memory than the machine has, which the server alone knows."""
    visit = Visit(browser, server, "#/new")
    visit.page.get_by_text("GPUs and memory", exact=True).click()
    visit.page.get_by_label("Free memory, GiB", exact=True).fill("many")
    visit.press("Submit")
    expect(visit.page.get_by_text("many is not a number, as in 0.001 or 1e-3, 0 or more")).to_be_visible()
    visit.page.get_by_label("Free memory, GiB", exact=True).fill("1000000")
    visit.press("Submit")
    expect(visit.page.get_by_text("this machine has")).to_be_visible()
    expect(visit.page.get_by_label("Free memory, GiB", exact=True)).to_be_focused()
    visit.page.close()


# --- how long it ran --------------------------------------------------------------------------------------


def test_the_time_between_attempts_is_not_time_run(browser: Any, server: Live) -> None:
    """A minute, cancelled, resumed after a week: it ran a minute, and does not while it is queued."""
    now = [time.time() - 7 * 86400]
    store = Store.open(server.settings.store_url, clock=lambda: now[0])
    ids = [store.create(counting(name=name)).id for name in ("paused", "other")]
    holding = Holding(store)
    for id_ in ids:
        attempt = holding.claim(id_, engine="test")
        assert attempt is not None
        holding.begin(id_, attempt.token, "test/1")
        now[0] += 60
        holding.finish(id_, attempt.token, State.CANCELLED)
    now[0] = time.time()
    store.ask_resume(ids[0])
    store.close()
    visit = Visit(browser, server, f"#/jobs/{ids[0]}")
    ran = visit.page.locator(".facts > div").filter(has_text="Ran")
    expect(ran).to_have_text("Ran1 min 00 s")
    visit.page.goto(f"{server.url}/#/")
    expect(visit.page.get_by_role("row", name="paused").locator(".pace")).to_contain_text("1 min 00 s")
    visit.page.goto(f"{server.url}/#/compare/{','.join(ids)}")
    row = visit.page.get_by_role("row").filter(has=visit.page.get_by_role("rowheader", name="Ran"))
    expect(row.get_by_role("cell").first).to_have_text("1 min 00 s")
    visit.page.close()


# --- the queue --------------------------------------------------------------------------------------------


def test_the_place_in_the_queue_moves_on_a_jobs_page(browser: Any, server: Live) -> None:
    """When another before it leaves, of which the job's own stream says nothing; compared ones too."""
    ids = [server.store.create(counting(name=f"waits {at}")).id for at in range(4)]
    visit = Visit(browser, server, f"#/jobs/{ids[2]}")
    expect(visit.state()).to_have_text("queued, 3rd")
    server.store.ask_cancel(ids[0])
    expect(visit.state()).to_have_text("queued, 2nd")
    visit.page.goto(f"{server.url}/#/compare/{ids[2]},{ids[3]}")
    places = visit.page.locator(".beside .badge")
    expect(places).to_have_text(["queued, 2nd", "queued, 3rd"])
    server.store.ask_cancel(ids[1])
    expect(places).to_have_text(["queued, 1st", "queued, 2nd"])
    assert visit.said == []
    visit.page.close()


def test_places_move_in_a_long_list(browser: Any, server: Live) -> None:
    """Where there are older jobs behind it, and where they were asked for: those stay."""
    ids = [server.store.create(counting(name=f"waits {at:02}")).id for at in range(60)]
    visit = Visit(browser, server)
    rows = visit.page.locator("tbody tr")
    expect(rows).to_have_count(50)
    newest = visit.page.get_by_role("row", name="waits 59").locator(".badge")
    expect(newest).to_have_text("queued, 60th")
    server.store.ask_cancel(ids[0])
    expect(newest).to_have_text("queued, 59th")
    visit.press("Older jobs")
    expect(rows).to_have_count(60)
    server.store.ask_cancel(ids[30])
    expect(newest).to_have_text("queued, 58th")
    expect(visit.page.get_by_role("row", name="waits 05").locator(".badge")).to_have_text("queued, 5th")
    expect(rows).to_have_count(60)
    assert visit.said == []
    visit.page.close()


def test_older_rows_are_there_when_a_tab_is_looked_at_again(browser: Any, server: Live) -> None:
    """It lets go of its stream meanwhile; what changed in older rows is told as well."""
    ids = [server.store.create(counting(name=f"waits {at:02}")).id for at in range(60)]
    visit = Visit(browser, server)
    rows = visit.page.locator("tbody tr")
    expect(rows).to_have_count(50)
    visit.press("Older jobs")
    expect(rows).to_have_count(60)
    look = """away => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => away });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    visit.page.evaluate(look, True)
    server.store.ask_cancel(ids[3])
    visit.page.evaluate(look, False)
    expect(visit.page.get_by_role("row", name="waits 03").locator(".badge")).to_have_text("cancelled")
    expect(rows).to_have_count(60)
    visit.page.close()


# --- what is newer ----------------------------------------------------------------------------------------


def test_an_answer_that_was_long_on_its_way_is_not_shown_over_newer_news(browser: Any, server: Live) -> None:
    """The stream has told of the job's start before the page's own question was answered."""
    id_ = server.store.create(counting(name="quick")).id
    old = server.get(f"/jobs/{id_}").json
    visit = Visit(browser, server, "#/nowhere")
    held: list[Any] = []
    visit.page.route(f"**/jobs/{id_}", lambda route: held.append(route))
    visit.page.goto(f"{server.url}/#/jobs/{id_}")
    expect(visit.state()).to_have_text("queued, 1st")
    holding = Holding(server.store)
    attempt = holding.claim(id_, engine="test")
    assert attempt is not None
    holding.begin(id_, attempt.token, "test/1")
    expect(visit.state()).to_have_text("running")
    with visit.page.expect_response("**/logs?last=2000"):
        for route in held:
            route.fulfill(json=old)
    assert visit.state().inner_text() == "running"
    visit.page.close()


def test_a_stream_that_fell_silent_is_opened_again(browser: Any, tmp_path: Path) -> None:
    """A connection whose other end is gone without a word: told after 45 s, and gone on with."""
    site = Site(settings_of(tmp_path / "jobs"))
    try:
        visit = Visit(browser, site, "#/nowhere")
        visit.page.clock.install()
        visit.page.goto(f"{site.url}/#/")
        connection = visit.page.locator("#connection")
        expect(connection).to_have_text("live")
        expect(visit.page.get_by_text("There are no jobs yet.")).to_be_visible()
        site.send(signal.SIGSTOP)
        visit.page.clock.fast_forward(46_000)
        expect(connection).to_have_text("connection lost, trying again")
        site.send(signal.SIGCONT)
        expect(connection).to_have_text("live")
        site.submit("afterwards", "1", "0.01", "1")
        expect(visit.page.get_by_role("link", name="afterwards")).to_be_visible()
        visit.page.close()
    finally:
        site.send(signal.SIGCONT)
        site.close()


# --- comparing --------------------------------------------------------------------------------------------


def test_more_jobs_than_can_be_compared_are_told(browser: Any, server: Live) -> None:
    """In the list before they are compared; and by the page, where an address has more."""
    ids = [server.store.create(counting(name=f"run {at}")).id for at in range(8)]
    visit = Visit(browser, server)
    for at in range(7):
        visit.page.get_by_label(f"compare run {at}").check()
    expect(visit.page.get_by_role("button", name="7 chosen: compare 6 at most")).to_be_disabled()
    visit.page.get_by_label("compare run 0").uncheck()
    visit.press("Compare 6 jobs")
    expect(visit.page.locator(".beside").first.locator("thead th")).to_have_count(6)
    expect(visit.page.get_by_text("Of 8 jobs")).to_have_count(0)
    visit.page.goto(f"{server.url}/#/compare/{','.join(ids)}")
    expect(visit.page.get_by_text("Of 8 jobs the first 6 are shown")).to_be_visible()
    expect(visit.page.locator(".beside").first.locator("thead th")).to_have_count(6)
    assert visit.said == []
    visit.page.close()
