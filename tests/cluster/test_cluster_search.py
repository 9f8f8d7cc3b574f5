"""A search on one node at a time, and on another of its kind if that is lost.

In place of `stoker tune` a small program runs: it begins a ledger as that does, and waits to be lost.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cluster import search
from stoker.cluster.errand import Errand
from stoker.cluster.search import Searching, find_ledger, ledgers, moved_budget
from stoker.errors import ClusterFailed
from stoker.tune.ledger import Ledger
from stoker.ward.fake_cluster import FakeCluster

PATIENCE_S = 20.0
COMMAND = ["train.py", "--lr", "0.1"]
# On its first machine it writes what it has begun and stands still; resumed, it says with what.
PROGRAM = """
import json, pathlib, signal, sys
home, host, budget, ledger = sys.argv[1:]
if ledger == "None":
    folder = pathlib.Path(home, "tune", "20260101-000000")
    folder.mkdir(parents=True)
    (folder / "search.json").write_text(json.dumps({"command": COMMAND, "host": host}))
    signal.pause()
print(json.dumps({"resumed": ledger, "budget": float(budget)}))
""".replace("COMMAND", repr(COMMAND))
# Its search is held by a process that the loss of its node does not end, until it is let go.
CUT_OFF = """
import pathlib, signal, subprocess, sys, time
from stoker.tune.ledger import Ledger
home, host, budget, ledger = sys.argv[1:]
about = {"command": COMMAND, "host": host}
if ledger == "None":
    words = [sys.executable, "-c", sys.orig_argv[2], home, host, budget, "held"]
    subprocess.Popen(words, start_new_session=True)
    signal.pause()
if ledger == "held":
    held = Ledger.begin(pathlib.Path(home, "tune", "20260101-000000"), about)
    until = time.monotonic() + 20
    while not pathlib.Path(home, "let-go").exists() and time.monotonic() < until:
        time.sleep(0.02)
else:
    with Ledger.resume(pathlib.Path(ledger), about):
        print("resumed")
""".replace("COMMAND", repr(COMMAND))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks of a test's length."""
    monkeypatch.setattr(search, "TICK_S", 0.02)
    monkeypatch.setattr(search, "_QUIET_S", 0.3)


@pytest.fixture
def pair() -> Iterator[FakeCluster]:
    """Two nodes of a kind, and one of another."""
    made = FakeCluster("a", "b", "gpu", gpus={"a": 1.0, "b": 1.0})
    yield made
    made.close()


def when(condition: Callable[[], object], then: Callable[[], object]) -> threading.Thread:
    """Do something once something is so."""

    def wait() -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < until:
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def searching(
    cluster: FakeCluster, home: Path, told: list[str], program: str = PROGRAM, resume: Path | None = None
) -> Searching:
    def words(budget: float, ledger: Path | None) -> tuple[str, ...]:
        return ("-c", program, str(home), "a", str(budget), str(ledger))

    return Searching(
        cluster,
        words,
        budget=300.0,
        home=home,
        command=COMMAND,
        files=[Path(__file__)],
        tell=told.append,
        resume=resume,
    )


@pytest.mark.parametrize(("budget", "left", "given"), [(300, 250, 250), (300, 20, 150), (60, -5, 60)])
def test_a_search_that_moved_has_time_to_try_something(budget: float, left: float, given: float) -> None:
    """However late its node was given up: it diagnoses and measures anew before it tries the next change."""
    assert moved_budget(budget, left) == given


def test_a_search_goes_on_with_its_ledger_on_another_node_of_its_kind(
    pair: FakeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With what is left of its budget."""
    told: list[str] = []

    def lose() -> None:
        while not ledgers(tmp_path):
            time.sleep(0.01)
        pair.lose("a")

    losing = threading.Thread(target=lose)
    losing.start()
    assert searching(pair, tmp_path, told).run() == 0
    losing.join()
    ledger = tmp_path / "tune" / "20260101-000000"
    printed = json.loads(capfd.readouterr().out)
    assert printed["resumed"] == str(ledger)
    assert 200 < printed["budget"] < 300
    assert told == [
        "tunes on a", f"the node a was lost: as ordered; it goes on with {ledger}", "tunes on b"
    ]  # fmt: skip


def test_a_search_that_is_only_cut_off_is_waited_for(
    pair: FakeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two never write to one ledger: the next goes on once the first has let go of it."""
    told: list[str] = []
    ledger = tmp_path / "tune" / "20260101-000000"
    waits = f"waits until a lost process lets go of {ledger}"

    losing = when(lambda: ledgers(tmp_path), lambda: pair.lose("a"))
    letting_go = when(lambda: waits in told, (tmp_path / "let-go").touch)
    assert searching(pair, tmp_path, told, CUT_OFF).run() == 0, capfd.readouterr().err
    letting_go.join()
    losing.join()
    assert capfd.readouterr().out == "resumed\n"
    assert told[2:] == [waits, "tunes on b"]


def test_a_search_that_is_never_let_go_of_is_an_end(
    pair: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said with the folder and what to do."""
    monkeypatch.setattr(search, "_HELD_S", 0.1)
    told: list[str] = []
    folder = tmp_path / "tune" / "20260101-000000"
    losing = when(lambda: "tunes on a" in told, lambda: pair.lose("a"))
    with (
        Ledger.begin(folder, {"command": COMMAND, "host": "a"}),
        pytest.raises(ClusterFailed, match=r"20260101-000000 is still held after 0.1 s.*end it there"),
    ):
        searching(pair, tmp_path, told, "import signal; signal.pause()", resume=folder).run()
    losing.join()
    assert told[-1] == f"what was tried is kept: --resume {folder} goes on with it"


@pytest.mark.parametrize("error", [ClusterFailed("the head is gone"), KeyboardInterrupt()])
def test_whatever_ends_a_search_its_folder_is_told(
    pair: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A lost head, a lost connection, Ctrl-C: the search does not go on by itself, so what would is said."""
    hear = Errand.attend

    def attend(errand: Errand) -> None:
        hear(errand)
        if ledgers(tmp_path):
            raise error

    monkeypatch.setattr(Errand, "attend", attend)
    told: list[str] = []
    with pytest.raises(type(error)):
        searching(pair, tmp_path, told).run()
    ledger = tmp_path / "tune" / "20260101-000000"
    assert told == ["tunes on a", f"what was tried is kept: --resume {ledger} goes on with it"]


def test_a_search_that_had_tried_nothing_has_no_folder_to_tell(pair: FakeCluster, tmp_path: Path) -> None:
    """Nor is one told that is harmed, or another's."""
    for name, text in (("1", "{"), ("2", "[]"), ("3", json.dumps({"host": "a", "command": ["other.py"]}))):
        (tmp_path / "tune" / name).mkdir(parents=True)
        (tmp_path / "tune" / name / "search.json").write_text(text)
    assert find_ledger(tmp_path, set(), "a", COMMAND) is None
    told: list[str] = []
    losing = when(lambda: "tunes on a" in told, lambda: pair.lose("a"))
    pair.lose("b")
    with pytest.raises(ClusterFailed):
        searching(pair, tmp_path, told, "import signal; signal.pause()").run()
    losing.join()
    assert told == ["tunes on a", "the node a was lost: as ordered; nothing was tried yet"]


def test_a_search_does_not_go_on_on_another_kind_of_node(pair: FakeCluster, tmp_path: Path) -> None:
    """Rates of that would say nothing of this one."""
    pair.lose("b")
    losing = threading.Timer(0.5, lambda: pair.lose("a"))
    losing.start()
    with pytest.raises(ClusterFailed, match="no other node of the cluster has 1 cores and 1 GPUs"):
        searching(pair, tmp_path, []).run()
    losing.join()


def test_a_search_has_its_node_to_itself(pair: FakeCluster, tmp_path: Path) -> None:
    """It waits until one is free; those that it did not take are given back."""
    told: list[str] = []
    busy = [pair.take(node, cpus=1.0, gpus=0.0) for node in pair.nodes()]

    def free_one() -> None:
        while not told:
            time.sleep(0.01)
        busy[1].close()

    freeing = threading.Thread(target=free_one)
    freeing.start()
    assert searching(pair, tmp_path, told, "import sys; sys.exit(3)").run() == 3
    freeing.join()
    assert told == ["waits for a whole node, one of a, b", "tunes on b"]
    assert [hand.node.name for hand in pair.hands if not hand.is_closed] == ["a", "gpu"]


def test_the_ledger_is_that_of_the_same_search(tmp_path: Path) -> None:
    """Of this command, on that machine, begun meanwhile."""
    for name, host, command in (
        ("1", "a", COMMAND),
        ("2", "b", COMMAND),
        ("3", "a", ["other.py"]),
    ):
        (tmp_path / "tune" / name).mkdir(parents=True)
        (tmp_path / "tune" / name / "search.json").write_text(json.dumps({"host": host, "command": command}))
    assert find_ledger(tmp_path, set(), "a", COMMAND) == tmp_path / "tune" / "1"
    assert find_ledger(tmp_path, {tmp_path / "tune" / "1"}, "a", COMMAND) is None
    assert find_ledger(tmp_path / "nowhere", set(), "a", COMMAND) is None


@pytest.mark.parametrize(
    ("here", "there"), [("runs", "{cwd}/runs"), ("/nfs/runs", "/nfs/runs"), (None, "None")]
)
def test_a_node_writes_where_this_machine_looks(
    pair: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    here: str | None, there: str,
) -> None:  # fmt: skip
    """$STOKER_RUNS is that of this machine, also where a node has its own."""
    monkeypatch.delenv("STOKER_RUNS", raising=False)
    if here is not None:
        monkeypatch.setenv("STOKER_RUNS", here)
    began = searching(pair, tmp_path, [], "import os; print(os.environ.get('STOKER_RUNS'))")
    start = Errand.__init__

    def start_elsewhere(errand: Errand, *words: Any) -> None:
        monkeypatch.setenv("STOKER_RUNS", "/the/node's/own")
        start(errand, *words)

    monkeypatch.setattr(Errand, "__init__", start_elsewhere)
    assert began.run() == 0
    assert capfd.readouterr().out == there.format(cwd=Path.cwd()) + "\n"


def test_a_script_that_a_node_does_not_have_is_told(pair: FakeCluster, tmp_path: Path) -> None:
    """Before anything runs there."""
    pair.other_files = {(name, "test_cluster_search.py"): "another" for name in ("a", "b")}
    with pytest.raises(ClusterFailed, match=r"test_cluster_search.py is another file on the node"):
        searching(pair, tmp_path, []).run()
