"""What crashes cost: nothing but the steps since the last checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.jobs import ending
from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.engine import Place
from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.identity import Identity
from stoker.jobs.job import Attempt, Job
from stoker.jobs.lease import MOST_LOSSES
from stoker.jobs.runner import FENCED, Runner
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store.holding import Holding
from stoker.ward.postgres import PostgresServer

from .kit import COUNT, SCRIPTS, Service, counting, tiny_heimdall


def ran(service: Service, job: Job) -> list[int]:
    """The steps at which processes of a job began."""
    path = service.folder(job).training / "ran.jsonl"
    return [json.loads(line)["from"] for line in path.read_text().splitlines()]


def steps_of(service: Service, job: Job) -> list[int]:
    return sorted(point.step for point in service.store.points(job.id).items)


def claim(service: Service, job: Job) -> Attempt:
    attempt = Holding(service.store).claim(job.id, engine="local")
    assert attempt is not None
    return attempt


def dead_process() -> Identity:
    """One that was here and is no more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    found = Identity.of(child.pid)
    child.communicate()
    return found


def test_a_job_goes_on_while_the_dispatcher_is_gone(service: Service) -> None:
    """Killed and started again, it takes over what runs: one attempt, each step once."""
    job = service.store.create(counting(steps=80, seconds=0.05))
    service.start()
    service.wait_for_step(job, 2)
    service.kill()
    service.wait_for_step(job, 20)
    service.start()
    service.wait_for_step(job, 40)
    service.kill()
    done = service.wait(job)
    assert done.state is State.DONE, service.tell(done)
    assert len(done.attempts) == 1
    assert ran(service, job) == [0]
    assert steps_of(service, job) == list(range(1, 81))
    following = service.store.create(counting(steps=1))
    service.start()
    assert service.wait(following).state is State.DONE


def test_after_the_machine_crashed_jobs_go_on_from_their_checkpoint(service: Service) -> None:
    """Everything killed at once: what was running goes on where it was saved, with one whole curve."""
    jobs = [service.store.create(counting(steps=60, seconds=0.05, every=10, name=name)) for name in "ab"]
    waiting = service.store.create(counting(steps=2))
    service.start()
    for job in jobs:
        service.wait_for_step(job, 15)
    service.kill()
    for job in jobs:
        handle = service.store.job(job.id).attempts[-1].handle
        assert handle is not None
        Identity.parse(handle).kill_session()
    service.start()
    for job in jobs:
        done = service.wait(job)
        assert done.state is State.DONE, service.tell(done)
        assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE]
        begun = ran(service, job)
        assert begun[0] == 0
        assert begun[1] >= 10
        assert begun[1] % 10 == 0
        assert steps_of(service, job) == list(range(1, 61))
    assert service.wait(waiting).state is State.DONE


def test_a_training_dies_with_its_runner(service: Service) -> None:
    """Killed alone, a runner leaves nothing that trains on unseen; the job goes on with another."""
    job = service.store.create(counting(steps=60, seconds=0.05, every=5))
    service.start()
    running = service.wait_for_step(job, 10)
    assert running.attempts[-1].handle is not None
    Identity.parse(running.attempts[-1].handle).kill_session()
    done = service.wait(job)
    assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE], service.tell(done)
    assert done.attempts[0].error == "its process is gone"
    assert steps_of(service, job) == list(range(1, 61))


def test_a_runner_told_to_stop_by_the_system_gives_its_job_back(service: Service) -> None:
    """A machine that shuts down sends SIGTERM to all: the training saves, and goes on when it is up again."""
    job = service.store.create(counting(steps=60, seconds=0.05, every=1000))
    service.start()
    running = service.wait_for_step(job, 5)
    assert running.attempts[-1].handle is not None
    Identity.parse(running.attempts[-1].handle).ask_to_end()
    done = service.wait(job)
    assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE], service.tell(done)
    assert ran(service, job)[1] >= 5
    assert steps_of(service, job) == list(range(1, 61))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a training has a group of its own")
@pytest.mark.parametrize("handles", [True, False], ids=["saves", "dies"])
def test_a_signal_to_all_of_a_jobs_processes_gives_it_back(
    service: Service, tmp_path: Path, handles: bool
) -> None:
    """As Ray's stop is: the training hears it too, and has ended before its runner could tell it to."""
    asked = counting(steps=60, seconds=0.05, every=5)
    if not handles:
        deaf = tmp_path / "deaf.py"
        deaf.write_text(Path(COUNT).read_text().replace("signal.signal(", "(lambda *_: None)("))
        asked = replace(asked, script=str(deaf))
    job = service.store.create(asked)
    service.start()
    running = service.wait_for_step(job, 10)
    assert running.attempts[-1].handle is not None
    os.killpg(Identity.parse(running.attempts[-1].handle).pid, signal.SIGTERM)
    done = service.wait(job)
    assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE], service.tell(done)
    assert "goes on from its last checkpoint" in (done.attempts[0].error or "")
    assert steps_of(service, job) == list(range(1, 61))


def test_a_job_given_back_again_and_again_without_a_step_is_left_lost(service: Service) -> None:
    """As one whose script signals its own group: it is for a person to look at, not queued for ever."""
    job = service.store.create(counting())
    for _ in range(MOST_LOSSES):
        assert service.store.job(job.id).state is State.QUEUED
        token = claim(service, job).token
        Holding(service.store).give_back(job.id, token, "told to stop by a signal", is_loss=True)
    assert service.store.job(job.id).state is State.LOST


def test_an_end_that_nobody_told_is_told_by_the_next_dispatcher(service: Service) -> None:
    """The training ended, its runner was killed before it could say so: it is done, and not run again."""
    job = service.store.create(counting())
    attempt = claim(service, job)
    folder = service.folder(job)
    folder.attempt(1).mkdir(parents=True)
    folder.training.mkdir()
    folder.log(1).write_text("at step 5\n")
    (folder.training / "metrics.jsonl").write_text('{"t": 1.0, "kind": "train", "step": 5, "loss": 0.2}\n')
    Holding(service.store).begin(job.id, attempt.token, str(dead_process()))
    ending.write_exit(folder, 1, 0, stopped=False, script=True)
    Dispatcher(service.settings, service.store, LocalEngine(service.settings)).look()
    done = service.store.job(job.id)
    assert (done.state, len(done.attempts)) == (State.DONE, 1)
    assert [line.text for line in service.store.lines(job.id).items] == ["at step 5"]
    assert steps_of(service, job) == [5]


def test_a_claim_without_a_process_is_found_by_its_silence(service: Service) -> None:
    """A dispatcher killed between claim and start: nobody beats, so the job is queued again after a lease."""
    job = service.store.create(counting())
    claim(service, job)
    now = [0.0]
    engine = LocalEngine(service.settings)
    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    dispatcher = Dispatcher(service.settings, service.store, engine, clock=lambda: now[0])
    while now[0] <= service.settings.lease_s:
        dispatcher.look()
        assert service.store.job(job.id).state is State.STARTING
        now[0] += 1.0
    dispatcher.look()
    found = service.store.job(job.id)
    assert (found.state, found.attempts[0].error) == (State.QUEUED, "no heartbeat")


def test_a_runner_whose_lease_is_gone_trains_nothing(service: Service) -> None:
    """It comes late, after its job was taken for lost and given to another."""
    job = service.store.create(counting())
    old = claim(service, job)
    [held] = Holding(service.store).held()
    Holding(service.store).lose(held.lease, "no heartbeat")
    claim(service, job)
    assert Runner(service.settings, service.store, job.id, 1, old.token).run() == FENCED
    assert not service.folder(job).log(1).exists()
    assert service.store.job(job.id).state is State.STARTING


@pytest.mark.skipif(sys.platform == "win32", reason="folders are locked by flock")
def test_two_runners_never_have_one_folder(service: Service) -> None:
    """Even where the store believes that the first is gone: the second waits until it is."""
    import fcntl

    job = service.store.create(counting())
    attempt = claim(service, job)
    folder = service.folder(job)
    folder.path.mkdir(parents=True)
    before = Holding(service.store).held()[0].lease.beat
    with folder.lock.open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        engine = LocalEngine(service.settings)
        handle = engine.start(job, attempt, Place())
        service.until(
            lambda: job, lambda _: Holding(service.store).held()[0].lease.beat >= before + 2
        )  # it beats while it waits
        assert service.store.job(job.id).state is State.STARTING
        assert not folder.log(1).exists()
    assert service.wait(job).state is State.DONE
    service.until(lambda: job, lambda _: engine.poll(handle) == "gone")


def test_the_dispatcher_ends_with_its_server(service: Service) -> None:
    """Whatever death that dies, its end of the pipe is closed; runners go on."""
    process = service.start()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


def test_a_second_dispatcher_waits_for_the_first(service: Service) -> None:
    """Two servers over one folder do not start jobs past each other's slots."""
    first = service.start()
    job = service.store.create(counting(steps=1))
    service.wait(job, State.RUNNING, State.DONE)
    second = service.start()
    first.kill()
    first.communicate()
    following = service.store.create(counting(steps=1))
    assert service.wait(following).state is State.DONE
    assert second.poll() is None
    assert len(service.store.job(job.id).attempts) == 1


@pytest.mark.service
def test_a_database_that_is_away_for_a_while_costs_nothing(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """A training goes on without it, for longer than a lease; curve and log are whole in the end."""
    service = Service(Settings(root=tmp_path / "jobs", store=postgres_url, lease_s=1.5, scripts=(SCRIPTS,)))
    try:
        job = service.store.create(counting(steps=100, seconds=0.05))
        service.start()
        service.wait_for_step(job, 2)
        postgres_server.stop()
        time.sleep(2.5)  # the outage itself
        postgres_server.start()
        done = service.wait(job)
        assert done.state is State.DONE, service.tell(done)
        assert len(done.attempts) == 1
        assert steps_of(service, job) == list(range(1, 101))
        assert [line.text for line in service.store.lines(job.id).items] == [
            "goes on from step 0", "at step 100",
        ]  # fmt: skip
    finally:
        service.close()


@pytest.mark.slow
def test_a_workload_killed_on_the_way_ends_with_the_same_curve(service: Service) -> None:
    """Every loss of every step is that of a training which was left in peace, to the last bit."""
    asked = tiny_heimdall(epochs=30, save={"every": 4})
    peaceful, killed = service.store.create(asked), service.store.create(asked)
    service.start()
    running = service.wait_for_step(killed, 40)
    assert running.state is State.RUNNING
    assert running.attempts[-1].handle is not None
    Identity.parse(running.attempts[-1].handle).kill_session()
    assert service.wait(peaceful).state is State.DONE
    done = service.wait(killed)
    assert done.state is State.DONE, service.tell(done)
    assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE]
    assert (done.attempts[1].first_step or 0) > 0

    def losses(job: Job) -> dict[tuple[str, int], float]:
        names = ["train/loss", "epoch/loss", "valid/median_m", "train/lr"]
        found = service.store.points(job.id, names=names, limit=10_000).items
        return {(point.name, point.step): point.value for point in found}

    assert losses(killed) == losses(peaceful)
    assert len(losses(killed)) == 90 * 2 + 30 * 2
