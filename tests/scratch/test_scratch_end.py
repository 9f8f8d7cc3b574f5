"""How a run ends: exactly, all of it, and with nothing of the user's run after the last step."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scratch_kit import HERE, available, digest, marked, plan

from stoker.scratch import Limits, run
from stoker.scratch.values import MECHANISMS, Mechanism

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.ones(4096, 4)), batch_size=2, num_workers=WORKERS)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        print("made", flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    """Each way to hold a run; skipped where the machine has it not."""
    name: Mechanism = request.param
    if not available(name):
        pytest.skip(f"no {name} here")
    return name


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A word in the environment of every process of a run."""
    return f"mark-{os.getpid()}-{tmp_path.name}"


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory that nobody else uses, so that what is left in it is ours.

    Its name is short: what workers hand over by goes through a socket in it, whose path may have 107 letters.
    pytest has made its own (`tmp_path`) by then.
    """
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_bounded_end_is_exact_and_leaves_nothing(
    tmp_path: Path, temporary: Path, mechanism: Mechanism, mark: str
) -> None:
    """Five updates of a loop with 4 workers, and not one more; no process, shared memory or file after."""
    path = script(tmp_path, TRAINING.replace("WORKERS", "4"))
    result = run(
        plan(
            path, hook="scratch_hooks:count_updates", limits=Limits(steps=5), env={"MARK": mark},
            mechanisms=(mechanism,),
        )
    )  # fmt: skip
    assert (result.outcome, result.steps, result.left) == ("done", 5, ()), result
    # The fifth update's own line comes after it, and is never run.
    assert result.stdout_tail == "made\n" * 4
    assert result.shield is not None
    assert result.shield.by == mechanism
    assert marked(mark) == []
    assert names_in(temporary) == []
    pid = next(message.body["pid"] for message in result.messages if message.kind == "started")
    assert not [name for name in names_in(Path("/dev/shm")) if name.startswith(f"torch_{pid}_")]


def test_user_code_after_the_last_step_never_runs(tmp_path: Path) -> None:
    """Not except, finally, atexit, signal handlers nor other threads."""
    kept = tmp_path / "kept"
    kept.mkdir()
    path = script(
        tmp_path,
        f"""
        import atexit, os, signal, threading, time, steps
        def leave(word): open("{kept}/" + word, "w").close()
        atexit.register(leave, "atexit")
        signal.signal(signal.SIGTERM, lambda *_: leave("handler"))
        signal.signal(signal.SIGCONT, lambda *_: leave("handler"))
        ended = False
        def beside():
            while True:
                time.sleep(0.0005)
                if ended: leave("thread")
        threading.Thread(target=beside, daemon=True).start()
        leave("before")
        try:
            for step in range(1, 100):
                ended = step == 3
                steps.child.progress(step)
        except BaseException:
            leave("except")
        finally:
            leave("finally")
        """,
    )
    result = run(plan(path, hook="scratch_hooks:give_child", limits=Limits(steps=3), writable=(kept,)))
    assert (result.outcome, result.steps) == ("done", 3), result
    time.sleep(0.05)
    assert {entry.name for entry in kept.iterdir()} - {"thread"} == {"before"}


def test_a_script_that_ends_before_its_steps_is_told_so(tmp_path: Path) -> None:
    """With what it made of them."""
    path = script(tmp_path, "import steps\nsteps.child.progress(1)\nsteps.child.progress(2)")
    result = run(plan(path, hook="scratch_hooks:give_child", limits=Limits(steps=9)))
    assert (result.outcome, result.steps) == ("ended-early", 2)
    assert result.reason == "the script ended after 2 of 9 steps"


def test_a_run_that_takes_too_long_times_out(tmp_path: Path, mark: str) -> None:
    """Though it ignores every signal it can."""
    path = script(
        tmp_path,
        """
        import signal, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
        while True:
            try: time.sleep(60)
            except BaseException: pass
        """,
    )
    result = run(plan(path, limits=Limits(seconds=3), env={"MARK": mark}))
    assert (result.outcome, result.reason) == ("timed-out", "3 s had passed at step n/a")
    assert marked(mark) == []


def test_a_run_without_progress_is_stopped(tmp_path: Path) -> None:
    """By the time since the last message, so a slow start is not held against it."""
    path = script(tmp_path, "import steps, time\nsteps.child.progress(7)\ntime.sleep(600)")
    result = run(plan(path, hook="scratch_hooks:give_child", limits=Limits(idle_seconds=1)))
    assert (result.outcome, result.guard, result.steps) == ("stopped", "idle", 7)
    assert result.reason == "no progress for 1 s, at step 7"


def test_a_script_that_failed_and_is_slow_to_go_has_failed(tmp_path: Path) -> None:
    """It joins its workers, say: what is told is why it failed, not that it makes no more steps."""
    path = script(
        tmp_path,
        "import atexit, steps, time\natexit.register(time.sleep, 60)\nsteps.child.progress(7)\n"
        "raise RuntimeError('no such sample: 12')",
    )
    result = run(plan(path, hook="scratch_hooks:give_child", limits=Limits(idle_seconds=1)))
    assert (result.outcome, result.guard, result.steps) == ("failed", None, 7)
    assert result.reason == "RuntimeError: no such sample: 12 (then no progress for 1 s, at step 7)"


@pytest.mark.parametrize(
    ("start", "reason"), [(30, "no progress for 1 s, at step 7"), (1, "no progress for 1 s, at step n/a")]
)
def test_the_first_step_may_have_a_time_of_its_own(tmp_path: Path, start: float, reason: str) -> None:
    """What is loaded or compiled before it may take longer than a step."""
    path = script(tmp_path, "import steps, time\ntime.sleep(3)\nsteps.child.progress(7)\ntime.sleep(600)")
    limits = Limits(idle_seconds=1, start_seconds=start)
    result = run(plan(path, hook="scratch_hooks:give_child", limits=limits))
    assert (result.guard, result.reason) == ("idle", reason)


DAEMON = """
import os, time, steps
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.environ["STILL"] = "there"
        while True: time.sleep(60)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("end", ["steps.child.end(1)", "", "raise SystemExit(3)"])
def test_daemons_that_left_the_session_are_ended(
    tmp_path: Path, mechanism: Mechanism, mark: str, end: str
) -> None:
    """Forked twice and in a session of their own, whether the script is ended or ends."""
    path = script(tmp_path, DAEMON + end)
    result = run(plan(path, hook="scratch_hooks:give_child", env={"MARK": mark}, mechanisms=(mechanism,)))
    assert result.outcome == ("failed" if "Exit" in end else "done"), result
    assert (result.left, marked(mark)) == ((), [])


def test_processes_that_fork_all_the_time_are_ended(tmp_path: Path, mechanism: Mechanism, mark: str) -> None:
    """Each child forks the next and dies, so no list of them is ever right: a connection that all hold is."""
    path = script(
        tmp_path,
        """
        import os, socket, time, steps
        held = socket.socket(socket.AF_UNIX)
        held.connect("\\0" + os.environ["MARK"])
        until = time.monotonic() + 60
        def chase():
            while time.monotonic() < until:
                if os.fork(): os._exit(0)
                time.sleep(0.002)
        for _ in range(4):
            if os.fork() == 0:
                os.setsid()
                chase()
        time.sleep(0.3)
        steps.child.end(1)
        """,
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + mark)
        listener.listen()
        result = run(plan(path, hook="scratch_hooks:give_child", env={"MARK": mark}, mechanisms=(mechanism,)))
        assert (result.outcome, result.left) == ("done", ()), result
        listener.settimeout(10)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            assert connection.recv(1) == b"", "a process of the run still holds its end"


SAVING = """
import contextlib, multiprocessing, os, shutil, sqlite3, subprocess, time, steps
from pathlib import Path
import numpy as np
import torch
def work():
    while True: time.sleep(1)
for _ in range(2): multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
os.chdir(Path(__file__).parent)
Path("precious.txt").write_text("changed")
Path("new.txt").write_text("new")
np.save("features.npy", np.ones(4))
torch.save({"w": torch.ones(3)}, "best.pt")
shutil.rmtree("checkpoints")
base = sqlite3.connect("runs.db")
base.execute("insert into runs values (0.1)")
base.commit()
base.execute("insert into runs values (0.2)")  # not committed: its journal lies beside it
with contextlib.suppress(Exception):  # behind patches alone no program is started
    subprocess.run("echo over > precious.txt; echo new > of_a_program.txt", shell=True)
steps.child.progress(1)
work()
"""
CALLER = """
import sys
sys.path.insert(0, {here!r})
from collections.abc import Iterator
from pathlib import Path
from scratch_kit import plan
from stoker.scratch import start
running = start(plan(Path({path!r}), hook="scratch_hooks:give_child", env={{"MARK": {mark!r}}},
                mechanisms=({mechanism!r},)))
for message in running:
    print(running.pid, flush=True)
"""


def start_caller(path: Path, mark: str, mechanism: Mechanism) -> tuple[subprocess.Popen[str], int]:
    """Another process that holds a run of the script; returns when the script has begun."""
    code = CALLER.format(here=str(HERE), path=str(path), mark=mark, mechanism=mechanism)
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    supervisor = int(caller.stdout.readline())
    return caller, supervisor


def wait_until_none(mark: str) -> list[int]:
    for _ in range(400):
        if not marked(mark):
            return []
        time.sleep(0.05)
    return marked(mark)


def wait_until_dead(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        pass


@pytest.mark.parametrize("victims", ["caller", "supervisor", "both"])
def test_kill_minus_9_from_outside_ends_everything(
    tmp_path: Path, temporary: Path, mechanism: Mechanism, mark: str, victims: str
) -> None:
    """Whoever is killed: no process is left, no file of the user's is changed, and soon no folder.

    Whatever the script had saved by then, in which way: every byte is as it was.
    """
    (tmp_path / "checkpoints/old").mkdir(parents=True)
    (tmp_path / "checkpoints/old/first.pt").write_bytes(b"the first")
    for name in ("precious.txt", "features.npy", "best.pt"):
        (tmp_path / name).write_text("as it was")
    with sqlite3.connect(tmp_path / "runs.db") as base:
        base.execute("create table runs (loss real)")
    base.close()
    path = script(tmp_path, SAVING)
    before = digest(tmp_path)
    caller, supervisor = start_caller(path, mark, mechanism)
    assert marked(mark) != []
    if victims == "both":
        # Else it may be killed amid removing the folder, whose lock is gone then: a later start sweeps that.
        caller.send_signal(signal.SIGSTOP)
    if victims in ("supervisor", "both"):
        os.kill(supervisor, signal.SIGKILL)
    if victims in ("caller", "both"):
        caller.kill()
    caller.communicate()
    assert caller.returncode == (0 if victims == "supervisor" else -9)
    assert wait_until_none(mark) == []
    if victims == "both":
        # Killed is not yet dead: without memory, and so without a mark, it holds its folder a moment longer.
        wait_until_dead(supervisor)
        run(plan(script(tmp_path, "", "next.py")))  # the next start sweeps
        (tmp_path / "next.py").unlink()
    for _ in range(200):
        if names_in(temporary) == []:
            break
        time.sleep(0.05)
    assert sorted(temporary.rglob("*")) == []  # all of it, so that a failure says what was left
    assert digest(tmp_path) == before
