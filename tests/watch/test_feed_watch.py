"""A `stoker.Feed` under `stoker run`: a loader like any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit import BATCH

from stoker.watch import Record

pytestmark = pytest.mark.quiet

SCRIPT = Path(__file__).parent / "feed_loop.py"
RUN = (sys.executable, "-m", "stoker", "run")
POINTS = 0.03
# 42 samples in batches of 4, twice.
SAMPLES = ([BATCH] * 10 + [2]) * 2


@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_for_a_feed_is_seen(workers: int, tmp_path: Path) -> None:
    """By threads and by a process: samples and loader of each step, and waiting as the loop itself saw it."""
    done = subprocess.run(
        [*RUN, "--runs", str(tmp_path), "--run-id", "feed", str(SCRIPT), str(workers)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    truth = json.loads(done.stdout.splitlines()[-1].removeprefix("TRUTH "))["seconds"]
    rank = Record.open(tmp_path / "feed").ranks[0]
    steps = list(rank.steps())
    assert [step.samples for step in steps] == SAMPLES

    feeds = [loader for loader in rank.about["loaders"] if loader["name"] == "Feed(Slow)"]
    assert [(feed["trains"], feed["fed"], feed["epochs"], feed["length"]) for feed in feeds] == [
        (True, 22, 2, 11)
    ]
    assert {step.loader for step in steps} == {feeds[0]["id"]}

    total = sum(step.seconds for step in steps[1:])
    waited = sum(step.wait or 0.0 for step in steps[1:])
    assert waited / total == pytest.approx(truth["wait"] / truth["total"], abs=POINTS)
    assert waited > 0
