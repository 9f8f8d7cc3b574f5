"""What fails once in the server is tried again: its streams, its doctor and its dispatcher outlive it."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs import dispatcher
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Attempt, Job, Request
from stoker.jobs.server import serving, streams
from stoker.jobs.server.doctoring import Doctor
from stoker.jobs.server.serving import Dispatching
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store

from .kit import PATIENCE_S, counting


def full() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_streams_go_on_after_a_moment_without_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that could not be shown is told once it can be; what was wrong is said once."""
    store = Store.open(str(tmp_path / "jobs.db"))
    failures = [full() for _ in range(5)]

    def show(job: Job) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        return {"id": job.id}

    async def follow() -> bytes:
        tailer = streams.Tailer(store, show, every_s=0.001)
        reading = asyncio.create_task(tailer.run())
        following = tailer.follow(None, None)
        assert await anext(following) == b"retry: 2000\n\n"
        made = await asyncio.to_thread(store.create, counting())
        async with asyncio.timeout(30):
            told = await anext(following)
        assert made.id.encode() in told
        tailer.close()
        assert [more async for more in following] == []
        await reading
        return told

    assert b"event: state" in asyncio.run(follow())
    assert capsys.readouterr().err.count("cannot be read: OSError: [Errno 24] Too many open files") == 1
    store.close()


def test_a_job_that_cannot_be_shown_does_not_keep_the_doctor_from_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes wrong behind a visit is said, and whoever asks next is seen."""
    seen = threading.Semaphore(0)

    def changed(id_: str) -> None:
        seen.release()
        raise full()

    doctor = Doctor(tmp_path, changed)
    attempt = Attempt(number=1, token=1, engine="test", handle=None, created=0.0)
    for number in range(2):
        job = Job(
            id=f"{number:012}",
            request=Request(name="n"),
            state=State.DONE,
            created=0.0,
            number=number,
            attempts=(attempt,),
        )
        record = JobFolder(root=tmp_path, id=job.id).record(1)
        record.mkdir(parents=True)
        (record / "run.json").write_text(json.dumps({"schema": 1}))
        doctor.ask(job)
        assert seen.acquire(timeout=PATIENCE_S)
    doctor.close()
    assert "visit to job 000000000000: [Errno 24] Too many open files" in capsys.readouterr().err


def test_a_dispatcher_that_cannot_be_started_at_once_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that is full for a moment does not leave a server that takes jobs and never runs one."""
    is_started = threading.Event()
    plan = iter([["-c", "pass"], None, None, ["-c", "input()"]])

    def start(settings: Settings) -> "subprocess.Popen[bytes]":
        if (words := next(plan)) is None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        child = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE)
        if words[1] != "pass":
            is_started.set()
        return child

    monkeypatch.setattr(dispatcher, "start", start)
    monkeypatch.setattr(serving, "_AGAIN_S", 0.01)
    dispatching = Dispatching(Settings(root=tmp_path))
    assert is_started.wait(30)
    dispatching.close()
    assert capsys.readouterr().err.count("the dispatcher cannot be started now: [Errno 11]") == 2
