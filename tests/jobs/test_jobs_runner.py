"""A runner and its training: what is wrong around them does not end the training."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs import runner, verdict
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Job, Request
from stoker.jobs.progress import Reading
from stoker.jobs.runner import Runner
from stoker.jobs.states import State
from stoker.jobs.store.holding import Holding

from .kit import Service


def run(service: Service, script: Path, text: str) -> Job:
    """A script in a runner of this process, to its end."""
    script.write_text(text)
    job = service.store.create(Request(name="n", script=str(script)))
    attempt = Holding(service.store).claim(job.id, engine="test")
    assert attempt is not None
    Runner(service.settings, service.store, job.id, 1, attempt.token).run()
    return service.store.job(job.id)


def test_a_doctor_that_cannot_be_started_ends_no_training(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process or memory is to be had for it: it is said, tried again later, and the training goes on."""
    asked: list[Path] = []

    def refuse(record: Path) -> None:
        asked.append(record)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(verdict, "begin", refuse)
    monkeypatch.setattr(runner, "_FIRST_VERDICT_S", 0.0)
    monkeypatch.setattr(Reading, "has_steps", True)
    done = run(service, tmp_path / "naps.py", "import time\nfor _ in range(30):\n    time.sleep(0.1)\n")
    assert (done.state, len(done.attempts)) == (State.DONE, 1), service.tell(done)
    assert len(asked) > 1, "while it trained, and at its end"
    assert "the doctor cannot be started now: [Errno 11]" in capsys.readouterr().err


def test_an_examination_that_cannot_begin_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is full is not filled further."""
    made = tempfile.TemporaryFile()  # noqa: SIM115 - who is tested closes it

    def refuse(*words: str, **given: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: made)
    monkeypatch.setattr(verdict, "start_doctor", refuse)
    with pytest.raises(OSError, match="Cannot allocate"):
        verdict.Examination(tmp_path)
    assert made.closed


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.mkdir('metrics.jsonl')\n",
        "with open('metrics.jsonl', 'w') as file:\n    file.write('[' * 60_000 + '\\n')\n",
        "with open('begun.json', 'w') as file:\n    file.write('[' * 60_000)\n",
    ],
    ids=["folder", "nested", "begun"],
)
def test_no_file_of_a_scripts_own_ends_it(service: Service, tmp_path: Path, text: str) -> None:
    """A folder by the journal's name, a line nested by the thousand: the job goes on to its end."""
    done = run(service, tmp_path / "odd.py", f"{text}import time\ntime.sleep(1.5)\nprint('whole')\n")
    assert done.state is State.DONE, service.tell(done)
    assert "whole" in [line.text for line in service.store.lines(done.id).items]


def test_a_journal_that_cannot_be_read_is_said_once_and_read_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it had in between is told then."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    journal = folder.training / "metrics.jsonl"
    journal.mkdir(parents=True)
    reading = Reading(folder, 1)
    for _ in range(3):
        assert reading.read(None) == ([], None)
    assert capsys.readouterr().err.count("metrics.jsonl") == 1
    journal.rmdir()
    journal.write_text('{"t": 1, "kind": "train", "step": 2, "loss": 0.5}\n')
    points, _ = reading.read(None)
    assert [point.step for point in points] == [2]
