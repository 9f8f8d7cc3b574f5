"""What the tests of the page share: a real `stoker serve`, a Chromium, and what a reader needs of a page."""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs.settings import Settings

from .kit import PATIENCE_S, SCRIPTS, Service
from .servers import Live

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_MS = PATIENCE_S * 1000


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; without one these tests fail, and say how to have it."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.fail("no Chromium on PATH: apt-get install chromium, or leave these out with -m 'not browser'")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        # A container's root may not make the sandbox; the pages are our own.
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


def expect(thing: Any) -> Any:
    """Playwright's own, imported where a browser is there."""
    from playwright.sync_api import expect as expects

    return expects(thing)


class Site:
    """A server's process, and its API as a test uses it."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self._port = settings, 0
        self.start()

    def start(self) -> None:
        """Start it, at the port that it had."""
        asked = self.settings
        command = [sys.executable, "-m", "stoker", "serve", "--json", "--root", str(asked.root)]
        command += ["--port", str(self._port), "--slots", str(asked.slots), "--engine", asked.engine]
        for folder in asked.scripts:
            command += ["--scripts", str(folder)]
        if asked.store is not None:
            command += ["--store", asked.store]
        if asked.ray_address is not None:
            command += ["--ray-address", asked.ray_address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def send(self, which: signal.Signals) -> None:
        """Send its process a signal."""
        self._process.send_signal(which)

    def close(self) -> None:
        """End it, and every job that still runs."""
        self._end(signal.SIGTERM)
        Service(self.settings).close()

    def ask(self, path: str, body: object = None) -> Any:
        """A request to the API, posted where there is a body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/training{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def submit(self, name: str, *arguments: str, script: str = "count.py") -> str:
        """A job of a script; its id."""
        made = self.ask("/jobs", {"job_name": name, "script": script, "arguments": list(arguments)})
        return str(made["id"])

    def _end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.communicate()


class Visit:
    """A page that was opened, and what went wrong on it."""

    def __init__(
        self, browser: Any, site: Site | Live, where: str = "", *, width: int = 1280, scheme: str = "light"
    ) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"{site.url}/{where}")

    def heading(self) -> Any:
        """What the page is called."""
        return self.page.get_by_role("heading", level=1)

    def state(self) -> Any:
        """The state of the job that is shown."""
        return self.page.locator(".title .badge")

    def press(self, name: str) -> None:
        """A button."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def wait_for_step(self, step: int) -> None:
        """Until the curve of the loss has come to a step."""
        self.page.wait_for_function(
            """step => {
              const told = document.querySelector(".plot")?.getAttribute("aria-label") ?? "";
              const steps = [...told.replaceAll(",", "").matchAll(/at step (\\d+)/g)];
              return steps.some(([, at]) => Number(at) >= step);
            }""",
            arg=step,
        )

    def is_too_wide(self) -> bool:
        """Whether it must be scrolled sideways."""
        across = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        return bool(across[0] > across[1])

    def faint(self) -> list[str]:
        """Texts that do not stand out from what is behind them: 4.5 to 1, by the web's rule for contrast."""
        return list(self.page.evaluate(_FAINT))

    def nameless(self) -> list[str]:
        """What can be used and has no name for those who do not see it."""
        return list(self.page.evaluate(_NAMELESS))


def settings_of(root: Path, *folders: Path) -> Settings:
    """A server with two slots, that runs the tests' own scripts and those of other folders."""
    return Settings(root=root, slots=2, scripts=(SCRIPTS, *folders))


def go_through(browser: Any, site: Site) -> None:
    """What a reader does, from the first job to a comparison; all of it by the page."""
    visit = Visit(browser, site)
    page = visit.page
    page.get_by_role("link", name="Submit the first one").click()
    for name, steps in (("short", "20"), ("long", "80")):
        page.get_by_label("What to run").select_option("script:scripts/count.py")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("arguments", exact=True).fill(f"{steps}\n0.1\n5")
        visit.press("Submit")
        expect(visit.heading()).to_have_text(name)
        if name == "short":
            page.get_by_role("link", name="New job").click()
    visit.wait_for_step(8)
    visit.press("Cancel")
    expect(visit.state()).to_have_text("cancelled")
    visit.press("Resume")
    expect(visit.state()).to_have_text("done")
    visit.wait_for_step(80)
    id_ = page.url.rpartition("/")[2]
    told = site.ask(f"/jobs/{id_}")
    assert [one["outcome"] for one in told["attempts"]] == ["cancelled", "done"]
    points = site.ask(f"/jobs/{id_}/metrics?limit=5000")["points"]
    assert sorted(point["step"] for point in points) == list(range(1, 81))
    page.get_by_role("link", name="Jobs", exact=True).click()
    for name in ("short", "long"):
        page.get_by_label(f"compare {name}").check()
    visit.press("Compare 2 jobs")
    visit.wait_for_step(80)
    expect(page.locator(".chart .legend li")).to_have_count(2)
    assert visit.said == []
    page.close()


_FAINT = """() => {
  const channels = (colour) => {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest(":disabled, option, noscript")) continue;
    const two = [light(channels(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
    if ((two[0] + 0.05) / (two[1] + 0.05) < 4.5) found.push(walker.currentNode.data.trim());
  }
  return found;
}"""

_NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, a, progress, [role]")]
  .filter((node) => !["status", "alert", "region", "group", "search"].includes(node.getAttribute("role")))
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.labels?.length || node.getAttribute("aria-label") || node.textContent.trim()))
  .map((node) => node.outerHTML)"""
