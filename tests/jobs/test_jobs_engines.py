"""Where jobs run: in threads, in processes; who may start, and who has to wait for what."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.errors import EngineFailed, NoSuchJob, UsageError
from stoker.facts import host
from stoker.facts.values import Gpu, Holder
from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.admission import find_place
from stoker.jobs.engines.engine import Place, Running
from stoker.jobs.engines.inprocess import InProcessEngine, Task
from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.folders import JobFolder
from stoker.jobs.identity import Identity
from stoker.jobs.job import Attempt, Job, Request
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.tail import MOST_LINES, Tail

from .kit import SCRIPTS, Service, counting, tiny_heimdall


def job_for(**asked: Any) -> Job:
    request = Request(name="n", workload="sar", **asked)
    return Job(id="0" * 12, request=request, state=State.QUEUED, created=0.0, number=1)


def card(index: int = 0, *, free: int | None = 80 << 30, holders: tuple[Holder, ...] | None = ()) -> Gpu:
    return Gpu(
        index=index, uuid=f"GPU-{index}", name="H200", driver="1", total_bytes=141 << 30,
        used_bytes=None if free is None else (141 << 30) - free, free_bytes=free, holders=holders,
    )  # fmt: skip


def admit(job: Job, *cards: Gpu, **given: Any) -> Place | str:
    usual: dict[str, Any] = {
        "no_cards": None, "taken": (), "without_card": 0, "slots": 1, "memory_free": 64 << 30,
    }  # fmt: skip
    return find_place(job, cards=cards, **{**usual, **given})


# --- who may start ----------------------------------------------------------------------------------------


def test_a_job_without_a_card_waits_for_a_slot() -> None:
    """As many as there are slots; cards do not matter to it."""
    assert admit(job_for()) == Place()
    assert admit(job_for(), without_card=1) == "waits for a slot: 1 of 1 are taken"


def test_a_card_has_one_job() -> None:
    """The next job gets the next card, and then none."""
    assert admit(job_for(gpus=1), card(0), card(1)) == Place(gpus=("GPU-0",))
    assert admit(job_for(gpus=1), card(0), card(1), taken={"GPU-0"}) == Place(gpus=("GPU-1",))
    assert admit(job_for(gpus=2), card(0), card(1)) == Place(gpus=("GPU-0", "GPU-1"))
    told = admit(job_for(gpus=2), card(0), card(1), taken={"GPU-0"})
    assert told == "waits for 2 GPUs: GPU 0 has a job"


def test_a_card_that_others_hold_is_named_with_its_holder() -> None:
    """A forgotten notebook is told with its path and how long it has been idle: its owner can be asked."""
    held = Holder(pid=4242, bytes=70 << 30, user="ann", notebook="train.ipynb", idle_s=3 * 3600.0)
    told = admit(job_for(gpus=1), card(holders=(held,)))
    assert isinstance(told, str)
    for word in ("GPU 0 is in use", "pid 4242", "ann", "train.ipynb", "idle for 3", "holds 70"):
        assert word in told


def test_memory_decides_where_the_need_is_known() -> None:
    """A card with a small tenant is used by a job that fits beside it, and by no other."""
    tenant = Holder(pid=7, bytes=10 << 30, user="bob", command="python serve.py")
    beside = card(free=100 << 30, holders=(tenant,))
    assert admit(job_for(gpus=1, vram_bytes=90 << 30), beside) == Place(gpus=("GPU-0",))
    told = admit(job_for(gpus=1, vram_bytes=110 << 30), beside)
    assert isinstance(told, str)
    assert "100 GiB free of the 110 GiB it needs: pid 7 (bob, python serve.py)" in told


def test_what_an_earlier_attempt_took_is_its_need() -> None:
    """Measured on the card: a resumed job is not started where it would not fit."""
    seen = replace(job_for(gpus=1), memory={"device_peak_bytes": 90 << 30})
    assert isinstance(admit(seen, card(free=80 << 30)), str)
    assert admit(seen, card(free=100 << 30)) == Place(gpus=("GPU-0",))


def test_a_card_whose_holders_are_hidden_is_judged_by_its_use() -> None:
    """In a container the driver may name nobody: a full card is not taken for a free one."""
    assert admit(job_for(gpus=1), card(free=141 << 30, holders=None)) == Place(gpus=("GPU-0",))
    told = admit(job_for(gpus=1), card(free=100 << 30, holders=None))
    assert isinstance(told, str)
    assert "by whom cannot be seen" in told


def test_a_machine_with_too_few_cards_says_so() -> None:
    """And why there are none."""
    told = admit(job_for(gpus=1), no_cards="no NVIDIA driver")
    assert told == "waits for a GPU: this machine has 0 (no NVIDIA driver)"


def test_memory_of_the_machine_is_waited_for() -> None:
    """Where the request says how much it needs."""
    told = admit(job_for(ram_bytes=100 << 30))
    assert told == "waits for memory: it needs 100 GiB, and 64.0 GiB are free"
    assert admit(job_for(ram_bytes=10 << 30)) == Place()


# --- in threads -------------------------------------------------------------------------------------------


def test_a_function_is_a_job(store: Store, tmp_path: Path) -> None:
    """Its steps are a curve, what it raises is why it failed, and a wish to cancel reaches it."""
    may_go_on = threading.Event()

    def work(task: Task) -> None:
        task.say("begins", "and goes on")
        if task.job.name == "bad":
            raise ValueError("no such set")
        for step in range(1, 4):
            task.tell(step, steps=3, loss=1 / step)
        if task.job.name == "slow":
            may_go_on.wait(60)
            task.tell(4, loss=0.25)

    engine = InProcessEngine(store, work, slots=3)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, engine)
    good, bad, slow = (store.create(Request(name=name, script="s")) for name in ("good", "bad", "slow"))
    dispatcher.look()
    while store.job(slow.id).step != 3:
        pass
    store.ask_cancel(slow.id)
    may_go_on.set()
    engine.wait()
    assert [store.job(job.id).state for job in (good, bad, slow)] == [
        State.DONE, State.FAILED, State.CANCELLED,
    ]  # fmt: skip
    assert [(point.step, point.value) for point in store.points(good.id).items] == [
        (1, 1),
        (2, 0.5),
        (3, 1 / 3),
    ]
    assert store.job(bad.id).error == "ValueError: no such set"
    assert [line.text for line in store.lines(bad.id).items] == ["begins", "and goes on"]


def test_an_engine_that_cannot_start_a_job_fails_it(store: Store, tmp_path: Path) -> None:
    """With the reason; the next job is not held up."""
    engine = InProcessEngine(store, lambda task: None)
    begin = engine.start

    def start(job: Job, attempt: Attempt, place: Place) -> str:
        if job.name == "bad":
            raise EngineFailed("no process could be made")
        return begin(job, attempt, place)

    engine.start = start  # type: ignore[method-assign]
    bad, good = store.create(Request(name="bad", script="s")), store.create(Request(name="good", script="s"))
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    engine.wait()
    assert (store.job(bad.id).state, store.job(bad.id).error) == (State.FAILED, "no process could be made")
    assert store.job(good.id).state is State.DONE


def test_a_closed_engine_gives_its_jobs_back(store: Store, tmp_path: Path) -> None:
    """A server that is stopped cancels nobody's job."""

    def work(task: Task) -> None:
        task.stopped.wait(60)

    engine = InProcessEngine(store, work)
    job = store.create(Request(name="long", script="s"))
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    engine.close()
    assert store.job(job.id).state is State.QUEUED


# --- in processes -----------------------------------------------------------------------------------------


def test_a_workload_trains_with_curves_log_phases_and_a_verdict(service: Service) -> None:
    """All that its page shows, from a real training; its folder has what `stoker train` leaves."""
    job = service.store.create(tiny_heimdall(epochs=4))
    service.start()
    done = service.wait(job)
    assert (done.state, done.error) == (State.DONE, None), service.tell(done)
    assert done.step == done.steps == 12
    points = service.store.points(job.id).items
    assert [point.step for point in points if point.name == "train/loss"] == list(range(1, 13))
    assert {"valid/median_m", "epoch/loss", "train/lr"} <= {point.name for point in points}
    assert any(line.text.startswith("step 12/12") for line in service.store.lines(job.id).items)
    assert done.phases is not None
    assert sum(done.phases.values()) == pytest.approx(1)
    assert done.memory is not None
    assert done.memory["peak_bytes"] > 100 << 20
    assert done.rate is not None
    assert done.verdict is not None
    assert done.verdict["sentence"].count(":") == 1
    folder = service.folder(job)
    assert json.loads((folder.training / "result.json").read_text())["ended"] == "done"
    assert (folder.record(1) / "run.json").exists()


def test_a_job_that_fails_says_why(service: Service, tmp_path: Path) -> None:
    """By the last thing it said; the whole log is there, also a last line without an end."""
    script = tmp_path / "bad.py"
    script.write_text("import sys\nprint('reads')\nprint('half', end='')\nsys.stdout.flush()\n1 / 0\n")
    job = service.store.create(Request(name="bad", script=str(script)))
    service.start()
    failed = service.wait(job)
    assert (failed.state, failed.error) == (State.FAILED, "ZeroDivisionError: division by zero")
    lines = [line.text for line in service.store.lines(job.id).items]
    assert lines[0] == "reads"
    assert any("bad.py" in line for line in lines)


def test_a_training_killed_by_the_system_is_told_by_the_signal(service: Service, tmp_path: Path) -> None:
    """As the system does when memory runs out: the job failed, and the log says what it did last."""
    script = tmp_path / "big.py"
    script.write_text(
        "import os, signal\nprint('takes memory', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    job = service.store.create(Request(name="big", script=str(script)))
    service.start()
    failed = service.wait(job)
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert failed.error.startswith("killed by SIGKILL (the machine may have run out of memory)")
    assert "takes memory" in failed.error


def test_a_cancelled_job_saves_and_goes_on_from_there(service: Service) -> None:
    """Nothing that it did is lost: it goes on at the step at which it was stopped, with one whole curve."""
    job = service.store.create(counting(steps=60, seconds=0.05, every=1000))
    service.start()
    service.wait_for_step(job, 3)
    service.store.ask_cancel(job.id)
    stopped = service.wait(job)
    assert stopped.state is State.CANCELLED
    assert stopped.step is not None
    assert 3 <= stopped.step < 60
    states = [one.body["state"] for one in service.store.events(job.id).items if one.kind == "state"]
    assert states == ["queued", "starting", "running", "saving", "cancelled"]
    service.store.ask_resume(job.id)
    done = service.wait(job)
    assert done.state is State.DONE, service.tell(done)
    ran = [json.loads(line) for line in (service.folder(job).training / "ran.jsonl").read_text().splitlines()]
    assert [one["from"] for one in ran] == [0, stopped.step]
    assert sorted(point.step for point in service.store.points(job.id).items) == list(range(1, 61))


def test_a_training_that_does_not_stop_is_killed_after_its_grace(tmp_path: Path) -> None:
    """A script that ignores the signal does not hold its slot for ever."""
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)\n"
    )
    service = Service(Settings(root=tmp_path / "jobs", grace_s=0.5, scripts=(tmp_path,)))
    try:
        job = service.store.create(Request(name="deaf", script=str(script)))
        service.start()
        service.until(lambda: service.store.job(job.id), lambda _: bool(service.store.lines(job.id).items))
        service.store.ask_cancel(job.id)
        killed = service.wait(job)
        assert killed.state is State.CANCELLED
        assert killed.error == (
            "killed after 0.5 s, before it had saved; resume goes on from the last checkpoint"
        )
    finally:
        service.close()


def test_a_job_knows_nothing_of_the_store(service: Service, tmp_path: Path) -> None:
    """Its environment has its folder, no card it was not given, and neither address nor password."""
    script = tmp_path / "show.py"
    script.write_text("import json, os\nprint(json.dumps(dict(os.environ)))\nprint(os.getcwd())\n")
    job = service.store.create(Request(name="show", script=str(script)))
    service.start()
    service.wait(job)
    told, where = [line.text for line in service.store.lines(job.id).items]
    environment = json.loads(told)
    assert "jobs.db" not in json.dumps({k: v for k, v in environment.items() if k != "PYTEST_CURRENT_TEST"})
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["STOKER_JOB_FOLDER"] == where == str(service.folder(job).training)


def test_jobs_that_run_beside_each_other_share_the_cores(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two slots has the threads of half of the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "threads.py"
    script.write_text("import os\nprint(os.environ['OMP_NUM_THREADS'])\n")
    job = service.store.create(Request(name="threads", script=str(script)))
    service.start()
    service.wait(job)
    half = max(1, int((host.read().usable_cores or 1) / 2))
    assert [line.text for line in service.store.lines(job.id).items] == [str(half)]


def test_a_process_is_known_by_its_birth_too() -> None:
    """Another one with the same number is not taken for it."""
    own = Identity.of(os.getpid(), ("GPU-1", "GPU-2"))
    assert Identity.parse(str(own)).lives()
    assert Identity.parse(str(own)).gpus == ("GPU-1", "GPU-2")
    assert not replace(own, born=own.born - 5).lives()
    assert own.is_here
    assert not replace(own, host="elsewhere").is_here


def test_what_a_runner_left_behind_is_killed(tmp_path: Path) -> None:
    """Loader workers of a runner that was killed do not go on without it."""
    settings = Settings(root=tmp_path)
    engine = LocalEngine(settings)
    child = psutil.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '600'])"],
        start_new_session=True,
    )
    handle = str(Identity.of(child.pid))
    while not (workers := psutil.Process(child.pid).children()):
        pass
    assert engine.poll(handle) == "alive"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert engine.poll(handle) == "gone"
    psutil.wait_procs(workers, timeout=30)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in workers)


def test_runners_that_ended_leave_no_zombies(service: Service) -> None:
    """A dispatcher that lives for years has not as many of them as it started jobs."""
    process = service.start()
    for _ in range(3):
        job = service.store.create(counting(steps=1))
        assert service.wait(job).state is State.DONE
        ended = Identity.parse(service.store.job(job.id).attempts[-1].handle or "")
        while ended.lives():
            pass
    children = psutil.Process(process.pid).children()
    assert [child.status() for child in children] in ([], [psutil.STATUS_ZOMBIE])


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["", "..", "a/b", "../../etc", "0123456789ag", "0123456789AB", "0" * 13])
def test_no_id_leaves_the_root(id_: str, tmp_path: Path) -> None:
    """What is no id has no folder."""
    with pytest.raises(NoSuchJob, match="12 hexadecimal digits"):
        JobFolder(root=tmp_path, id=id_)


def test_a_deleted_job_leaves_no_folder(service: Service) -> None:
    """Also where the dispatcher was not there when it was deleted."""
    job = service.store.create(counting())
    service.folder(job).training.mkdir(parents=True)
    (service.folder(job).training / "state.json").write_text("{}")
    service.store.ask_cancel(job.id)
    service.store.delete(job.id)
    service.start()
    service.until(lambda: job, lambda _: not service.folder(job).path.exists())
    assert not service.folder(job).path.exists()


def test_lines_are_read_whole(tmp_path: Path) -> None:
    """What has no end yet waits for it, unless it is the last; a very long one comes in parts."""
    path = tmp_path / "log.txt"
    tail = Tail(path)
    assert tail.read() == []
    path.write_bytes(b"one\ntwo\nhal")
    assert tail.read() == ["one", "two"]
    assert tail.read() == []
    assert Tail(path, tail.position).read(rest=True) == ["hal"]
    with path.open("ab") as file:
        file.write(b"f\n\n\xff\n")
    assert tail.read() == ["half", "", "\ufffd"]
    with path.open("ab") as file:
        file.write(b"x" * (1 << 17))
    assert tail.read() == ["x" * (1 << 17)]
    assert tail.position == path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\n" * (MOST_LINES + 3))
    assert [len(tail.read(rest=True)) for _ in range(3)] == [MOST_LINES, 3, 0]
    assert tail.position == path.stat().st_size


def test_settings_travel_by_the_environment() -> None:
    """And without them a process says who should have started it."""
    settings = Settings(
        root=Path("/r"), store="postgresql://ann:secret@host/jobs", scripts=(SCRIPTS,), slots=3,
        data=(SCRIPTS,), database="env:RADIO",
    )  # fmt: skip
    assert Settings.from_environment(settings.to_environment()) == settings
    with pytest.raises(UsageError, match="stoker serve"):
        Settings.from_environment({})
    with pytest.raises(UsageError, match="slots is 0"):
        Settings(root=Path("/r"), slots=0)


def test_a_card_is_not_given_out_while_it_is_unknown_who_starts_where(tmp_path: Path) -> None:
    """A dispatcher that was killed in a start does not know yet which card that job has."""
    engine = LocalEngine(Settings(root=tmp_path), read_cards=lambda: ((card(0), card(1)), None))
    starting = Running(job=job_for(gpus=1), handle=None)
    assert engine.find_place(job_for(gpus=1), [starting]) == (
        "waits for a GPU: a job is starting, and which it has is not known yet"
    )
    known = replace(starting, handle=str(Identity.of(os.getpid(), ("GPU-0",))))
    assert engine.find_place(job_for(gpus=1), [known]) == Place(gpus=("GPU-1",))
    assert engine.find_place(job_for(), [starting]) == Place()
