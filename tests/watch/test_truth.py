"""Every hard case: the shares that Stoker tells against the truth that the loop itself kept."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from warm import WarmStoker

from stoker.watch import Record

pytestmark = pytest.mark.quiet

CASES = Path(__file__).parent / "cases.py"
POINTS = 0.03
NAMES = [
    line.split("def ")[1].split("(")[0]
    for before, line in zip(CASES.read_text().splitlines(), CASES.read_text().splitlines()[1:], strict=False)
    if before == "@case"
]
# What the loop did beside the phases, and the cases whose truth needs more than a plain run.
APART = {"raises_in_mid_epoch", "two_ranks", "no_loader"}
# Started as a user does, importing everything anew; the others differ in their loops, not in their start.
COLD = {"workers_0", "workers_spawn"}
# Naps need no core, and the machine has two.
AT_ONCE = 3
WARNINGS = ("-W", "error::UserWarning:stoker")

Run = tuple[Record, dict[str, Any], "subprocess.CompletedProcess[str]"]


def run_case(name: str, folder: Path, *launcher: str) -> Run:
    """Run a case as a user does, under `stoker run`; its record, the truth it told, and how it ended."""
    command = [sys.executable, *WARNINGS, *launcher, "-m", "stoker", *words_of(name, folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, check=False)
    return read_run(done, folder)


def words_of(name: str, folder: Path) -> list[str]:
    return ["run", "--runs", str(folder), "--run-id", "case", str(CASES), name]


def read_run(done: "subprocess.CompletedProcess[str]", folder: Path) -> Run:
    told = [line for line in done.stdout.splitlines() if line.startswith("TRUTH ")]
    assert told, done.stderr
    return Record.open(folder / "case"), json.loads(told[-1].removeprefix("TRUTH ")), done


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Run]]]:
    """The cases that were asked for, a few at a time: they are naps for nearly all of their 2 s."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and "runs" in item.fixturenames
    ]
    servers: Queue[WarmStoker] = Queue()

    def run(name: str) -> Run:
        folder = tmp_path_factory.mktemp(name)
        server = servers.get()
        try:
            return read_run(server.run(*words_of(name, folder), cwd=folder), folder)
        finally:
            servers.put(server)

    for _ in range(AT_ONCE):
        servers.put(WarmStoker(*WARNINGS))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run, name) for name in asked}
        pool.shutdown(cancel_futures=True)
    while not servers.empty():
        servers.get().close()


def shares_of(record: Record, rank: int = 0) -> dict[str, float]:
    """Shares over every step but the first, as the truth is."""
    steps = list(record.ranks[rank].steps())[1:]
    total = sum(step.seconds for step in steps)
    return {
        phase: sum(getattr(step, phase) or 0.0 for step in steps) / total
        for phase in ("wait", "forward", "backward", "update", "copy", "other")
    }


def assert_true(record: Record, truth: dict[str, Any]) -> None:
    """Steps counted, and each phase within three points."""
    steps = list(record.ranks[0].steps())
    seconds = truth["seconds"]
    assert len(steps) == truth["steps"]
    assert [step.step for step in steps] == list(range(len(steps)))
    measured = shares_of(record)
    expected = {p: seconds.get(p, 0.0) / seconds["total"] for p in ("wait", "forward", "backward", "update")}
    assert {p: measured[p] for p in expected} == pytest.approx(expected, abs=POINTS)
    assert sum(step.seconds for step in steps[1:]) == pytest.approx(seconds["total"], rel=0.03)
    assert measured["copy"] == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in APART | COLD])
def test_shares_are_true(name: str, runs: dict[str, Future[Run]]) -> None:
    """Wait, forward, backward and update lie within three points of what the loop itself saw."""
    record, truth, done = runs[name].result()
    assert done.returncode == 0, done.stderr
    assert_true(record, truth)
    assert record.outcome == "done"


@pytest.mark.parametrize("name", sorted(COLD))
def test_shares_are_true_from_the_start(name: str, tmp_path: Path) -> None:
    """So they are in a process that began with the command."""
    record, truth, done = run_case(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert_true(record, truth)


@pytest.mark.parametrize("name", ["no_loader"])
def test_without_a_loader_waiting_is_not_measured(name: str, runs: dict[str, Future[Run]]) -> None:
    """With no loader to stand in, `wait` is None, never 0, and the time is `other`."""
    record, truth, _ = runs[name].result()
    steps = list(record.ranks[0].steps())
    assert {step.wait for step in steps} == {None}
    expected = truth["seconds"]["making"] / truth["seconds"]["total"]
    assert shares_of(record)["other"] == pytest.approx(expected, abs=POINTS)


@pytest.mark.parametrize("name", ["raises_in_mid_epoch"])
def test_an_exception_in_mid_epoch_leaves_the_record_whole(name: str, runs: dict[str, Future[Run]]) -> None:
    """The steps made are all there, the shares are true, and the failure is told."""
    record, truth, done = runs[name].result()
    assert done.returncode == 1
    assert_true(record, truth)
    assert record.outcome == "failed"
    assert record.ranks[0].about["error"] == "ValueError: the loss is not finite"


def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    """Under torchrun each rank keeps its own lines in one record, and both are true."""
    record, truth, done = run_case(
        "two_ranks", tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(record.ranks) == [0, 1]
    assert_true(record, truth)
    assert shares_of(record, rank=1)["wait"] == pytest.approx(shares_of(record)["wait"], abs=2 * POINTS)
