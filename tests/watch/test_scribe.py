"""The process that writes the record: a script does not meet it, and neither's end takes the other along."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import stoker
from stoker.watch import Record, recorder
from stoker.watch.account import Account
from stoker.watch.notes import DRAW_BEGINS, DRAW_ENDS, LOOP_BEGINS, PAUSE_ENDS, STEP_MARKED
from stoker.watch.round import Round
from stoker.watch.scribe import Scribe

MS = 1_000_000
LOOP = """
import os, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.randn(100000, 4)), num_workers={workers})
for number, (x,) in enumerate(data):
    net(x).sum().backward(); optimizer.step()
    time.sleep(0.01)
    if number == 20: print("begun", flush=True)
"""


def scribe_of(pid: int) -> psutil.Process:
    """The process that writes this one's record."""
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "-c" in words and f'"pid": {pid}' in " ".join(words) and "scribe_process" in " ".join(words):
            return process
    raise AssertionError(f"no scribe for {pid}")


def train(steps: int) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def started(folder: Path, workers: int) -> "subprocess.Popen[str]":
    """A script under Stoker that has begun to train."""
    (folder / "train.py").write_text(LOOP.format(workers=workers))
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "run", "--quiet", "train.py"],
        cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_leaves_what_it_had_told(tmp_path: Path, workers: int) -> None:
    """Also while forked workers, which hold the same pipe, are still there; and the scribe ends."""
    process = started(tmp_path, workers)
    time.sleep(1.2)  # two rounds
    scribe = scribe_of(process.pid)
    process.kill()
    process.wait()
    scribe.wait(timeout=20)
    assert process.stdout is not None
    process.stdout.close()
    record = Record.open("latest", tmp_path / ".stoker/runs")
    steps = [step.step for step in record.ranks[0].steps()]
    assert steps == list(range(len(steps)))
    assert len(steps) > 20
    assert record.outcome == "unknown"


@pytest.mark.parametrize("how", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_run_goes_on_without_its_scribe(tmp_path: Path, how: signal.Handlers) -> None:
    """The loop makes its steps, also one that would die of a broken pipe; what happened is told."""
    before = signal.signal(signal.SIGPIPE, how)
    with stoker.Watch(runs=tmp_path) as watch:
        train(5)
        session = watch._session
        assert session is not None
        session.recorder.exchange()
        scribe_of(os.getpid()).kill()
        time.sleep(1.2)
        session.recorder.exchange()
        train(5)
    signal.signal(signal.SIGPIPE, before)
    assert "the process that writes the record has ended" in (session.failure or "")
    record = watch.record
    assert len(list(record.ranks[0].steps())) == 5
    assert "has ended" in record.ranks[0].about["failure"]
    assert session.observer.notes == []


def test_a_scribe_that_hangs_does_not_hold_the_end_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not answer, say."""
    monkeypatch.setattr(recorder, "_PATIENCE", 0.5)
    with stoker.Watch(runs=tmp_path) as watch:
        train(5)
        scribe = scribe_of(os.getpid())
        scribe.suspend()
    scribe.kill()
    assert "has not ended in" in watch.record.ranks[0].about["failure"]


def test_a_scribe_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the account goes on; nothing piles up for it."""
    monkeypatch.setattr(recorder, "_ANSWER", 0.5)
    with stoker.Watch(runs=tmp_path) as watch:
        session = watch._session
        assert session is not None
        scribe = scribe_of(os.getpid())
        scribe.suspend()
        session.expect(10)
        train(5)
        assert session.observer.notes == []
    scribe.kill()
    assert "has not answered in" in watch.record.ranks[0].about["failure"]


def test_a_signal_at_the_very_start_does_not_end_it(tmp_path: Path) -> None:
    """A script that signals its group before anything else is recorded all the same."""
    (tmp_path / "train.py").write_text(
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.killpg(0, signal.SIGTERM)\n"
        "import torch\nnet = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(4):\n    net(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--json", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, start_new_session=True, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert (told["steps"], told["failure"]) == (4, None)


def test_a_signal_as_soon_as_it_may_come_does_not_end_it(tmp_path: Path) -> None:
    """The script begins when the scribe's first process has ended; its second has left the group by then."""
    (tmp_path / "try.py").write_text(
        "import json, os, signal, subprocess, sys, time\n"
        "from stoker.watch.scribe_process import CODE\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "about = dict(pid=os.getpid(), live=False, folder=sys.argv[1], started=time.time())\n"
        "for _ in range(20):\n"
        "    words = [sys.executable, '-P', '-c', CODE, json.dumps(about), *sys.path]\n"
        "    first = subprocess.Popen(words, stdin=-1, stdout=-1, bufsize=0)\n"
        "    first.wait()\n"
        "    os.killpg(0, signal.SIGTERM)\n"
        "    first.stdin.close()\n"
        "    print('ended' if first.stdout.read() == b'' else 'answered')\n"
    )
    done = subprocess.run(
        [sys.executable, "try.py", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, start_new_session=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["answered"] * 20


def test_counts_of_other_kinds_than_python_s_are_taken(tmp_path: Path) -> None:
    """NumPy's, say."""
    with stoker.Watch(runs=tmp_path, total_steps=np.int64(100)) as watch:  # type: ignore[arg-type]
        for _ in range(3):
            with watch.loading(samples=np.int64(8)):  # type: ignore[arg-type]
                pass
            watch.step()
    assert [step.samples for step in watch.record.ranks[0].steps()] == [8, 8, 8]
    assert watch.record.about["total_steps"] == 100


@pytest.mark.skipif(os.name != "posix", reason="nobody waits for children here")
def test_a_script_meets_no_child_of_ours(tmp_path: Path) -> None:
    """It may wait for all its children, and signal its own group."""
    (tmp_path / "train.py").write_text(
        "import os, signal, torch\n"
        "try:\n    print(os.wait())\nexcept ChildProcessError:\n    print('no children')\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('told'))\n"
        "net = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(4):\n    net(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "os.killpg(0, signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--json", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, start_new_session=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no children" in done.stderr
    assert "told" in done.stderr
    assert json.loads(done.stdout)["steps"] == 4


def test_modules_beside_the_script_are_not_the_scribe_s(tmp_path: Path) -> None:
    """A `pickle.py` there is the script's affair."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/pickle.py").write_text("raise RuntimeError('not the one you want')\n")
    (tmp_path / "src/train.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(4):\n    net(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--json", "src/train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4


def test_signals_do_not_end_it(tmp_path: Path) -> None:
    """It outlives whatever the script is sent, to the last round."""
    with stoker.Watch(runs=tmp_path) as watch:
        scribe = scribe_of(os.getpid())
        session = watch._session
        assert session is not None
        session.recorder.exchange()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            scribe.send_signal(number)
        train(3)
    assert len(list(watch.record.ranks[0].steps())) == 3


# --- what it works out ------------------------------------------------------------------------------


def noted(*notes: tuple[int, int, object]) -> list[object]:
    """Notes at these milliseconds."""
    return [value for ms, what, more in notes for value in (what, ms * MS, None, more)]


def about(goal: int | None = None, length: int | None = None) -> str:
    loader = {"id": 0, "name": "L", "settings": {}, "length": length, "workers": []}
    return json.dumps({"goal": goal, "loaders": [loader]})


def account_of(folder: Path, *rounds: Round) -> Account:
    scribe = Scribe(folder, pid=os.getpid(), started=0.0)
    for one in rounds:
        scribe.take(one)
    scribe.finish()
    return scribe.account()


def steps_until(count: int, first: int = 0) -> list[object]:
    return noted(
        *(
            note
            for number in range(first, count)
            for note in (
                (10 * number + 1, DRAW_BEGINS, 0),
                (10 * number + 4, DRAW_ENDS, 8),
                (10 * number + 10, STEP_MARKED, None),
            )
        )
    )


def test_the_account_tells_what_is_left_of_the_epoch(tmp_path: Path) -> None:
    """By the loader's length and what was drawn of it; by the goal where one was told."""
    begun = noted((0, LOOP_BEGINS, False))
    found = account_of(tmp_path, Round(begun + steps_until(30), about=about(length=100)))
    assert (found.steps, found.tally.steps, found.loaders[0].fed) == (30, 29, 30)
    assert found.remaining_steps() == 70
    found = account_of(tmp_path, Round(begun + steps_until(30), about=about(goal=40, length=100)))
    assert found.remaining_steps() == 10


def test_a_pause_does_not_slow_the_sustained_rate(tmp_path: Path) -> None:
    """Whichever round it comes in; before the first step there is none to slow."""
    begun = noted((0, LOOP_BEGINS, False))
    pause = noted((10_000, PAUSE_ENDS, None))
    later = steps_until(1020, first=1000)
    whole = account_of(tmp_path, Round(begun + steps_until(20) + pause + later, about=about()))
    parts = account_of(
        tmp_path, Round(begun, about=about()), Round(steps_until(20)), Round(pause), Round(later)
    )
    for found in (whole, parts):
        assert found.tally.sustained == pytest.approx(100, rel=0.06)


def test_a_round_that_makes_no_sense_stops_the_record_and_is_told(tmp_path: Path) -> None:
    """Nothing raises, and later rounds are let go."""
    found = account_of(tmp_path, Round(noted((0, 99, None))), Round(noted((0, LOOP_BEGINS, False))))
    assert "recording stopped: IndexError" in (found.failure or "")
