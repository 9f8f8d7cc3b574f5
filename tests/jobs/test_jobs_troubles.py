"""What goes wrong with one job costs that job alone, and an engine that is away for a while costs none."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.errors import EngineAway, EngineFailed
from stoker.jobs import ending
from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.engine import Phase, Place, Running
from stoker.jobs.engines.inprocess import InProcessEngine
from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Attempt, Job, Request
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Report


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One in a file: what is tested here is not its kind."""
    return Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")


def ask(store: Store, count: int = 1) -> list[Job]:
    return [store.create(Request(name=f"n{index}", script="s")) for index in range(count)]


def claim(store: Store, job: Job, engine: str) -> Attempt:
    attempt = Holding(store).claim(job.id, engine=engine)
    assert attempt is not None
    return attempt


# --- one job that is not understood -----------------------------------------------------------------------


def test_a_job_of_another_engine_holds_nobody_up(store: Store, tmp_path: Path) -> None:
    """A service that was restarted with --engine local leaves what runs on Ray to its heartbeat."""
    settings = Settings(root=tmp_path, slots=2)
    engine, started = LocalEngine(settings), list[str]()
    engine.start = lambda job, attempt, place: started.append(job.id) or "h/1/1.0/"  # type: ignore
    elsewhere, following = ask(store, 2)
    attempt = claim(store, elsewhere, "ray")
    Holding(store).begin(elsewhere.id, attempt.token, f"stoker-{elsewhere.id}-1")
    Dispatcher(settings, store, engine).look()
    assert started == [following.id]
    assert store.job(elsewhere.id).state is State.RUNNING


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals are Linux's")
def test_a_signal_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    """Real-time signals have none in Python."""
    code = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 35)"]).returncode
    end = ending.judge(
        {"code": code, "stopped": False, "script": True}, tmp_path / "log.txt", cancelled=False
    )
    assert (end.outcome, end.error) == (State.FAILED, "killed by signal 35")


class Blind(InProcessEngine):
    """An engine that cannot look after one of its jobs."""

    blind_to: str | None = None

    def poll(self, handle: str) -> Phase:
        """Raises for that one."""
        if self.blind_to is not None and handle.startswith(self.blind_to):
            raise ValueError("not a handle")
        return super().poll(handle)


def test_a_job_that_cannot_be_attended_to_costs_the_others_nothing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are started and settled; what went wrong is logged once, and told when the job is lost."""
    now = [0.0]
    engine = Blind(store, lambda task: None, slots=9)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, engine, clock=lambda: now[0])
    bad, gone, following = ask(store, 3)
    for job in (bad, gone):
        Holding(store).begin(job.id, claim(store, job, "inprocess").token, f"{job.id}/1")
    engine.blind_to = bad.id
    folder = JobFolder(root=tmp_path, id=gone.id)
    folder.attempt(1).mkdir(parents=True)
    ending.write_exit(folder, 1, 0, stopped=False, script=True)
    for _ in range(3):
        dispatcher.look()
    engine.wait()
    assert [store.job(job.id).state for job in (bad, gone, following)] == [
        State.RUNNING, State.DONE, State.DONE,
    ]  # fmt: skip
    told = capsys.readouterr().err
    assert told.count(f"stoker: job {bad.id}: ValueError: not a handle") == 1
    assert "Traceback" in told
    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    while now[0] < 40.0:
        now[0] += 1.0
        dispatcher.look()
    found = store.job(bad.id)
    assert found.state is State.QUEUED
    assert found.attempts[0].error == "no heartbeat; ValueError: not a handle"
    store.close()


@pytest.mark.parametrize("text", ['{"code": ', '{"code": 0}', "[]"])
def test_an_end_that_cannot_be_understood_is_none(store: Store, tmp_path: Path, text: str) -> None:
    """The job goes on from its last checkpoint, and is told why."""
    engine = InProcessEngine(store, lambda task: None)
    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    [job] = ask(store)
    Holding(store).begin(job.id, claim(store, job, "inprocess").token, f"{job.id}/1")
    folder = JobFolder(root=tmp_path, id=job.id)
    folder.attempt(1).mkdir(parents=True)
    (folder.attempt(1) / "exit.json").write_text(text)
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    found = store.job(job.id)
    assert found.state is State.QUEUED
    assert (found.attempts[0].error or "").startswith("its process is gone, and exit.json is not understood:")
    store.close()


def test_what_it_printed_last_may_be_unreadable_and_it_is_still_lost(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log on a disk that fails does not keep its job in a slot for ever."""
    engine = InProcessEngine(store, lambda task: None)
    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    [job] = ask(store)
    Holding(store).begin(job.id, claim(store, job, "inprocess").token, f"{job.id}/1")
    JobFolder(root=tmp_path, id=job.id).log(1).mkdir(parents=True)  # a folder cannot be read as a file
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    found = store.job(job.id)
    assert found.state is State.QUEUED
    assert "its process is gone; what it left was not read (IsADirectoryError" in found.attempts[0].error  # type: ignore
    assert "IsADirectoryError" in capsys.readouterr().err
    store.close()


def test_an_engine_that_stumbles_over_a_job_fails_that_one(store: Store, tmp_path: Path) -> None:
    """A fault of its own, which is told with its kind; the next one starts."""
    engine = InProcessEngine(store, lambda task: None)
    begin = engine.start

    def start(job: Job, attempt: Attempt, place: Place) -> str:
        if job.id == bad.id:
            raise TypeError("no such thing")
        return begin(job, attempt, place)

    engine.start = start  # type: ignore[method-assign]
    bad, good = ask(store, 2)
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    engine.wait()
    assert store.job(bad.id).state is State.FAILED
    assert store.job(bad.id).error == "the engine could not start it: TypeError: no such thing"
    assert store.job(good.id).state is State.DONE
    store.close()


def test_a_place_that_cannot_be_looked_for_is_waited_for(store: Store, tmp_path: Path) -> None:
    """As where the driver does not answer: nobody fails, and the first of the line says why."""
    engine = InProcessEngine(store, lambda task: None, slots=9)
    find = engine.find_place

    def fail(job: Job, running: list[Running]) -> Place | str:
        raise RuntimeError("the driver does not answer")

    engine.find_place = fail  # type: ignore[method-assign]
    jobs = ask(store, 3)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, engine)
    dispatcher.look()
    assert {store.job(job.id).state for job in jobs} == {State.QUEUED}
    assert store.job(jobs[0].id).waits_for == "waits for its engine: RuntimeError: the driver does not answer"
    engine.find_place = find  # type: ignore[method-assign]
    dispatcher.look()
    engine.wait()
    assert {store.job(job.id).state for job in jobs} == {State.DONE}
    store.close()


# --- an engine that is away -------------------------------------------------------------------------------


def away(store: Store) -> tuple[InProcessEngine, list[str], Callable[[], None]]:
    """An engine that can start nothing until it is back, and whom it was asked to start."""
    engine, asked, is_back = InProcessEngine(store, lambda task: None, slots=99), list[str](), list[bool]()
    begin = engine.start

    def start(job: Job, attempt: Attempt, place: Place) -> str:
        asked.append(job.id)
        if not is_back:
            raise EngineAway("no process can be made now: Resource temporarily unavailable")
        return begin(job, attempt, place)

    engine.start = start  # type: ignore[method-assign]
    return engine, asked, lambda: is_back.append(True)


def test_an_engine_that_is_away_for_a_while_fails_nobody(store: Store, tmp_path: Path) -> None:
    """The queue stays as it is, the first says what it waits for, and nobody has an attempt that was none."""
    now = [0.0]
    engine, asked, come_back = away(store)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, engine, clock=lambda: now[0])
    jobs = ask(store, 20)
    for _ in range(40):
        dispatcher.look()
        now[0] += 0.25
    found = [store.job(job.id) for job in jobs]
    assert {job.state for job in found} == {State.QUEUED}
    assert [job.position for job in found] == list(range(1, 21))
    assert found[0].waits_for == "no process can be made now: Resource temporarily unavailable"
    assert {job.attempts for job in found} == {()}
    assert set(asked) == {jobs[0].id}
    assert 2 <= len(asked) <= 5, "less and less often"
    come_back()
    now[0] += 60.0
    dispatcher.look()
    engine.wait()
    found = [store.job(job.id) for job in jobs]
    assert {(job.state, job.waits_for, len(job.attempts)) for job in found} == {(State.DONE, None, 1)}
    store.close()


def test_a_job_cancelled_while_its_engine_is_away_is_cancelled(store: Store, tmp_path: Path) -> None:
    """Between the claim and the news that nothing was started."""
    engine, _, _ = away(store)
    begin, [job] = engine.start, ask(store)

    def start(job: Job, attempt: Attempt, place: Place) -> str:
        store.ask_cancel(job.id)
        return begin(job, attempt, place)

    engine.start = start  # type: ignore[method-assign]
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    assert store.job(job.id).state is State.CANCELLED
    store.close()


def test_a_start_that_was_heard_after_all_is_fenced(store: Store) -> None:
    """An answer that was lost on the way: that process writes nothing, as its token is an old one."""
    [job], holding = ask(store), Holding(store)
    old = claim(store, job, "ray")
    holding.put_back(job.id, old.token, "no answer")
    new = claim(store, job, "ray")
    assert (new.number, new.token > old.token) == (1, True)
    with pytest.raises(Exception, match="writes nothing more"):
        holding.begin(job.id, old.token, "old")
    holding.begin(job.id, new.token, "new")
    holding.put_back(job.id, new.token, "no answer")
    assert store.job(job.id).state is State.RUNNING, "who has spoken keeps the job"
    holding.report(job.id, new.token, Report())
    store.close()


def test_a_process_that_cannot_be_made_is_the_machines_fault_or_the_jobs(tmp_path: Path) -> None:
    """Where no folder of jobs can be written all wait; where one job's is none, that one fails."""
    settings = Settings(root=tmp_path)
    engine = LocalEngine(settings)
    job = Job(id="0" * 12, request=Request(name="n", script="s"), state=State.STARTING, created=0.0, number=1)
    attempt = Attempt(number=1, token=1, engine="local", handle=None, created=0.0)
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(EngineAway, match=r"no process can be started now: .*runs"):
        engine.start(job, attempt, Place())
    (tmp_path / "runs").unlink()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / job.id).write_text("no folder")
    with pytest.raises(EngineFailed, match=r"cannot start a process for job 0+: ") as told:
        engine.start(job, attempt, Place())
    assert not isinstance(told.value, EngineAway)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX's")
def test_a_dispatcher_out_of_files_fails_nobody(store: Store, tmp_path: Path) -> None:
    """EMFILE at a start, as EAGAIN and ENOSPC, is not the job's fault."""
    import resource

    engine = LocalEngine(Settings(root=tmp_path))
    job = replace(ask(store)[0], state=State.STARTING)
    attempt = Attempt(number=1, token=1, engine="local", handle=None, created=0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open(os.devnull, os.O_RDONLY)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        with pytest.raises(EngineAway, match="Too many open files"):
            engine.start(job, attempt, Place())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    store.close()
