"""How an attempt ended: what an exit means after a cancel, after a signal, and by itself."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stoker.errors import UsageError
from stoker.jobs import ending
from stoker.jobs.ending import End
from stoker.jobs.job import Request
from stoker.jobs.runner import Runner
from stoker.jobs.server import serving
from stoker.jobs.states import State
from stoker.jobs.store.holding import Holding
from stoker.jobs.verbs import serve

from .kit import Service, counting

KILLED = "killed after 60 s, before it had saved; resume goes on from the last checkpoint"
UNHEARD = (
    "ended by SIGTERM, which it does not handle: it saved nothing then; "
    "resume goes on from the last checkpoint"
)


@pytest.mark.parametrize(
    ("code", "cancelled", "expected"),
    [
        (143, True, End(outcome=State.CANCELLED)),
        (0, True, End(outcome=State.CANCELLED)),
        (-signal.SIGTERM, True, End(outcome=State.CANCELLED, error=UNHEARD)),
        (-signal.SIGKILL, True, End(outcome=State.CANCELLED, error=KILLED)),
        (1, True, End(outcome=State.CANCELLED, error="RuntimeError: the disk is full")),
        (143, False, End(outcome=None)),
        (0, False, End(outcome=None)),
        (-signal.SIGKILL, False, End(outcome=None, error=KILLED)),
        (1, False, End(outcome=None, error="RuntimeError: the disk is full")),
    ],
)
def test_what_an_exit_means_after_it_was_told_to_stop(
    code: int, cancelled: bool, expected: End, tmp_path: Path
) -> None:
    """Whatever it is, the job was to stop; one that did not save says so."""
    log = tmp_path / "log.txt"
    log.write_text("Traceback\nRuntimeError: the disk is full\n")
    killed_s = 60.0 if code == -signal.SIGKILL else None
    told = {"code": code, "stopped": True, "script": True, "killed_s": killed_s}
    assert ending.judge(told, log, cancelled=cancelled) == expected


def test_a_death_while_it_saved_is_told_by_its_signal(tmp_path: Path) -> None:
    """As where the system ran out of memory in the meantime: nobody here killed it."""
    told = {"code": -signal.SIGKILL, "stopped": True, "script": False, "killed_s": None}
    end = ending.judge(told, tmp_path / "log.txt", cancelled=True)
    assert end.outcome is State.CANCELLED
    assert end.error == "killed by SIGKILL (the machine may have run out of memory)"


@pytest.mark.parametrize(("code", "outcome"), [(0, State.DONE), (1, State.FAILED), (-15, State.FAILED)])
def test_an_exit_of_its_own_is_no_cancel(code: int, outcome: State, tmp_path: Path) -> None:
    """A workload that made its last step as it was told to stop is done; who was not told ended by itself."""
    told = {"code": code, "stopped": False, "script": True}
    assert ending.judge(told, tmp_path / "log.txt", cancelled=True).outcome is outcome
    last = {"code": 0, "stopped": True, "script": False}
    assert ending.judge(last, tmp_path / "log.txt", cancelled=True) == End(outcome=State.DONE)


def run_and(
    service: Service, script: Path, do: Callable[[str], object]
) -> tuple[State, str | None, str | None]:
    """A real training in a runner of this process; `do` is called once it has printed. How it ended."""
    job = service.store.create(Request(name="n", script=str(script)))
    attempt = Holding(service.store).claim(job.id, engine="test")
    assert attempt is not None

    def act() -> None:
        service.until(lambda: service.store.job(job.id), lambda _: bool(service.store.lines(job.id).items))
        do(job.id)

    acting = threading.Thread(target=act)
    acting.start()
    Runner(service.settings, service.store, job.id, 1, attempt.token).run()
    acting.join()
    found = service.store.job(job.id)
    return found.state, found.error, found.attempts[0].error


@pytest.mark.slow
def test_a_script_that_fails_as_it_is_cancelled_is_cancelled(service: Service, tmp_path: Path) -> None:
    """What it said then is the error."""
    script = tmp_path / "clumsy.py"
    script.write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('no place to save'))\n"
        "print('trains', flush=True)\ntime.sleep(600)\n"
    )
    ended = run_and(service, script, service.store.ask_cancel)
    assert ended == (State.CANCELLED, "no place to save", "no place to save")


def test_a_job_cancelled_and_lost_before_it_saved_says_so(service: Service) -> None:
    """As where its runner was killed with it; one that had not begun had nothing to save."""
    holding = Holding(service.store)
    begun, new = (service.store.create(counting()) for _ in range(2))
    for job in (begun, new):
        attempt = holding.claim(job.id, engine="test")
        assert attempt is not None
        if job is begun:
            holding.begin(job.id, attempt.token, "h/1/1.0/")
        service.store.ask_cancel(job.id)
    for held in holding.held():
        assert holding.lose(held.lease, "its process is gone") is State.CANCELLED
    assert service.store.job(begun.id).error == (
        "its process is gone, before it was seen to save; resume goes on from the last checkpoint"
    )
    assert service.store.job(new.id).error is None


def start(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> list[serving.Serving]:
    """How `stoker serve` with these words would serve; none where it refuses."""
    made: list[serving.Serving] = []

    def note(started: serving.Serving) -> None:
        made.append(started)
        raise UsageError("far enough")

    monkeypatch.setattr(serving, "Running", note)
    app = typer.Typer()
    app.command()(serve)
    CliRunner().invoke(app, words)
    return made


def test_the_grace_is_an_option_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training whose state takes minutes to save is given them."""
    assert [one.settings.grace_s for one in start(monkeypatch, [])] == [60.0]
    assert [one.settings.grace_s for one in start(monkeypatch, ["--grace", "900"])] == [900.0]
    assert start(monkeypatch, ["--grace", "0"]) == []


def test_a_store_in_a_file_is_the_same_one_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runners of Ray are not started where the server was."""
    monkeypatch.chdir(tmp_path)
    [made] = start(monkeypatch, ["--store", "sqlite:///f.db"])
    assert made.settings.store == f"sqlite:///{tmp_path / 'f.db'}"


@pytest.mark.parametrize("code", [143, -signal.SIGTERM, 1])
def test_a_training_signalled_with_its_runner_is_lost_and_not_failed(code: int, tmp_path: Path) -> None:
    """It goes on where nobody cancelled it, as one that is lost; one that made its last step is done."""
    told = {"code": code, "stopped": False, "script": False, "killed_s": None, "signalled": True}
    end = ending.judge(told, tmp_path / "log.txt", cancelled=False)
    assert (end.outcome, end.is_loss) == (None, True)
    assert ending.judge(told, tmp_path / "log.txt", cancelled=True).outcome is State.CANCELLED
    done = {**told, "code": 0}
    assert ending.judge(done, tmp_path / "log.txt", cancelled=False).outcome is State.DONE
