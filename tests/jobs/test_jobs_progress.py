"""What a training's files tell of it, and what the doctor's visits leave."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Attempt, Job, Request
from stoker.jobs.progress import Reading
from stoker.jobs.server import doctoring
from stoker.jobs.server.doctoring import Doctor
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store import holding as kept
from stoker.jobs.store.holding import Holding, Number, Progress, Report
from stoker.jobs.tail import Tail

from .kit import Service, counting, tiny_heimdall
from .test_jobs_crash import dead_process

CARDS = [{"index": index, "name": f"H{index}", "total_bytes": 100, "visible": index == 1} for index in (0, 1)]
READ = [{"index": 0, "used_bytes": 90, "utilisation_percent": 99}, {"index": 1, "used_bytes": 5}]


def begin_record(folder: JobFolder, facts: dict[str, Any] | None) -> None:
    rank = folder.record(1) / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    (folder.record(1) / "run.json").write_text(json.dumps({"schema": 1, "facts": facts}))
    with (rank / "resources.jsonl").open("a") as lines:
        lines.write(json.dumps({"t": 1.0, "rss_bytes": 7, "processes": [], "gpus": READ}) + "\n")


def test_the_card_that_is_told_is_the_jobs_own(tmp_path: Path) -> None:
    """All cards of the machine are read; which of them it was given is known from its record's facts."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    reading = Reading(folder, 1)
    begin_record(folder, None)
    _, made = reading.read(None)
    assert made is not None
    assert (made.gpu, made.memory and made.memory["rss_bytes"]) == (None, 7)
    begin_record(folder, {"gpus": CARDS})
    _, made = reading.read(None)
    assert made is not None
    assert made.gpu == {
        "index": 1, "name": "H1", "total_bytes": 100, "used_bytes": 5, "utilisation_percent": None,
        "power_w": None,
    }  # fmt: skip


def test_a_job_that_was_given_no_card_tells_of_none(tmp_path: Path) -> None:
    """However busy those of others are."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    begin_record(folder, {"gpus": [{**one, "visible": False} for one in CARDS]})
    _, made = Reading(folder, 1).read(None)
    assert made is not None
    assert made.gpu is None


_GARBAGE = (
    '{"t": NaN, "kind": "train", "step": 1, "loss": 1}',
    '{"t": 1, "kind": "train", "step": 1e30, "loss": 1}',
    f'{{"t": 1, "kind": "train", "step": {1 << 63}, "loss": 1}}',
    '{"t": 1, "kind": "train", "step": -1, "loss": 1}',
    '{"t": 1, "kind": "train", "step": true, "loss": 1}',
    '{"t": 1, "kind": ["train"], "step": 1, "loss": 1}',
    f'{{"t": 1, "kind": "train", "step": 1, "loss": {10**400}}}',
    '{"t": 1, "kind": "train", "step": 1, "loss": "low", "acc": Infinity, "ok": false, "more": [1]}',
    "[1, 2]", "null", "{", "\x00\x01", "",
)  # fmt: skip


@pytest.mark.parametrize("begun", ["{", "[]", "{}", '{"pid": 1}', '{"pid": 1, "step": "x", "steps": -1}'])
def test_what_a_script_writes_ends_no_job(store: Store, tmp_path: Path, begun: str) -> None:
    """Its folder is its own: numbers that are none are left out, the others are its curve in every store."""
    job = store.create(counting())
    holding = Holding(store)
    attempt = holding.claim(job.id, engine="test")
    assert attempt is not None
    holding.begin(job.id, attempt.token, "h")
    folder = JobFolder(root=tmp_path, id=job.id)
    folder.training.mkdir(parents=True)
    (folder.training / "begun.json").write_text(begun)
    good = '{"t": 1, "kind": "train", "step": 2, "lo\\u0000ss": 0.5, "\\ud800": 1, '
    good += '"samples_per_second": "fast", "eta_seconds": "soon", "peak_bytes": "all"}'
    (folder.training / "metrics.jsonl").write_text("\n".join((*_GARBAGE, good, "")))
    points, made = Reading(folder, 1).read(None)
    holding.report(job.id, attempt.token, Report(points=points, progress=made))
    told = [(point.name, point.step, point.value) for point in store.points(job.id).items]
    assert told == [("train/lo\ufffdss", 2, 0.5), ("train/?", 2, 1.0)]
    found = store.job(job.id)
    assert (found.step, found.steps, found.rate, found.eta_s) == (2, None, None, None)


def journal(folder: JobFolder, *steps: int, mode: str = "w") -> None:
    """Lines of a training's journal."""
    folder.training.mkdir(parents=True, exist_ok=True)
    with (folder.training / "metrics.jsonl").open(mode) as file:
        for step in steps:
            file.write(json.dumps({"t": time.time(), "kind": "train", "step": step, "loss": 1 / step}) + "\n")


def steps_of(found: tuple[list[Number], Progress | None]) -> list[int]:
    return [point.step for point in found[0]]


def test_a_journal_that_is_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Shorter than it was, longer already, or another file of its name: none of its points is missed."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    journal(folder, *range(1, 11))
    reading = Reading(folder, 2)
    assert steps_of(reading.read(None)) == list(range(1, 11))
    journal(folder, 11, 12)
    assert steps_of(reading.read(None)) == [11, 12]
    journal(folder, *range(12, 40))
    assert steps_of(reading.read(None)) == list(range(12, 40))
    (folder.training / "metrics.jsonl").unlink()
    journal(folder, 3)
    journal(folder, 4, mode="a")
    assert steps_of(reading.read(None)) == [3, 4]
    journal(folder, 5, mode="a")
    assert steps_of(reading.read(None)) == [5]


def test_what_an_earlier_trainer_said_of_its_beginning_is_void(tmp_path: Path) -> None:
    """Its pid may be this one's too: the journal is read when this attempt's trainer has begun it."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    journal(folder, *range(1, 11))
    begun = folder.training / "begun.json"
    begun.write_text('{"pid": 7, "step": 0, "steps": 40}')
    reading = Reading(folder, 2)
    reading.begin(workload=True)
    assert steps_of(reading.read(7)) == []
    journal(folder, *range(1, 6))
    begun.write_text('{"pid": 7, "step": 5, "steps": 40}')
    assert steps_of(reading.read(7)) == list(range(1, 6)) and reading.first_step == 5
    journal(folder, 6, mode="a")
    assert steps_of(reading.read(7)) == [6]


def observe(folder: JobFolder, attempt: int, count: int) -> None:
    """Steps that were seen of an attempt, in its record."""
    rank = folder.record(attempt) / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    with (rank / "steps.jsonl").open("a") as file:
        file.writelines(json.dumps({"t": 0.1 * step, "samples": 1}) + "\n" for step in range(count))


def step_of(reading: Reading) -> int | None:
    _, made = reading.read(None)
    assert made is not None
    return made.step


def test_a_resumed_script_is_as_far_as_its_journal_says(tmp_path: Path) -> None:
    """And by what was seen since: an earlier attempt's steps count, its last line does not."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    journal(folder, *range(1, 91))
    reading = Reading(folder, 2)
    reading.begin(workload=False)
    points, _ = reading.read(None)
    assert [point.step for point in points] == list(range(1, 91)), "told again, in case they were not"
    observe(folder, 2, 7)
    assert step_of(reading) == 7, "where it goes on from is not known yet"
    journal(folder, *range(91, 108), mode="a")
    observe(folder, 2, 10)
    assert step_of(reading) == 107
    observe(folder, 2, 1)
    reading.read(None)
    observe(folder, 2, 2)
    assert step_of(reading) == 109


def test_a_journal_of_epochs_is_not_how_many_steps_were_made(tmp_path: Path) -> None:
    """What was seen is more."""
    folder = JobFolder(root=tmp_path, id="0" * 12)
    reading = Reading(folder, 1)
    reading.begin(workload=False)
    journal(folder, 1, 2)
    observe(folder, 1, 400)
    assert step_of(reading) == 400


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_attempt_that_died_before_its_trainer_began_made_no_step(
    service: Service, has_begun: bool
) -> None:
    """The journal in its folder is an earlier attempt's: none of its steps are this one's."""
    job = service.store.create(tiny_heimdall())
    folder, holding = service.folder(job), Holding(service.store)
    attempt = holding.claim(job.id, engine="local")
    assert attempt is not None
    holding.begin(job.id, attempt.token, str(dead_process()))
    journal(folder, *range(1, 91))
    folder.attempt(1).mkdir()
    if has_begun:  # and had not come so far as to say so
        (folder.attempt(1) / "plan.json").write_text("{}")
    else:  # nor to void what the earlier one had said
        (folder.training / "begun.json").write_text('{"pid": 7, "step": 0, "steps": 100}')
    engine = LocalEngine(service.settings)
    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    Dispatcher(service.settings, service.store, engine).look()
    found = service.store.job(job.id)
    assert (found.state, found.step, found.attempts[0].last_step) == (State.QUEUED, None, None)


def test_a_chatty_training_has_a_log_with_an_end(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store keeps so many lines of an attempt and says where the others are; the next has its own."""
    monkeypatch.setattr(kept, "MOST_LINES", 10)
    monkeypatch.setattr(kept, "MOST_LOG_BYTES", 1000)
    job, holding = store.create(counting()), Holding(store)

    def print_(*parts: str) -> list[str]:
        """What is kept of an attempt that prints in parts, told as a runner tells them."""
        attempt = holding.claim(job.id, engine="test")
        assert attempt is not None
        holding.begin(job.id, attempt.token, "h")
        path = tmp_path / f"{attempt.number}.txt"
        tail = Tail(path)
        for part in parts:
            with path.open("a") as file:
                file.write(part)
            before = tail.position
            lines = [(1.0, line) for line in tail.read(rest=True)]
            orders = holding.report(
                job.id, attempt.token, Report(lines=lines, log_from=before, log_to=tail.position)
            )
            tail.position = orders.log_bytes
        holding.finish(job.id, attempt.token, State.FAILED)
        store.ask_resume(job.id)
        return [line.text for line in store.lines(job.id).items if line.attempt == attempt.number]

    [*told, last] = print_("1\n2\n3\n", "\n" * 5, "9\n10\n11\n12\n", "13\n", "14\n")
    assert told == ["1", "2", "3", "", "", "", "", "", "9", "10"]
    assert "attempt-1/log.txt" in last
    assert print_("\n" * 10) == [""] * 10
    [first, long, last] = print_("a\n", "x" * 1001 + "\n", "b\n")
    assert (first, long) == ("a", "x" * 1001) and "attempt-3/log.txt" in last


@pytest.mark.slow
def test_a_resumed_script_that_writes_its_journal_anew_has_a_whole_curve(
    service: Service, tmp_path: Path
) -> None:
    """The old journal is read before the script begins the new one: no point of that is missed."""
    script = tmp_path / "anew.py"
    script.write_text(
        "import json, os, pathlib, time\n"
        "kept = pathlib.Path(os.environ['STOKER_JOB_FOLDER']) / 'at'\n"
        "first = int(kept.read_text()) if kept.exists() else 0\n"
        "time.sleep(2)\n"
        "with open(kept.parent / 'metrics.jsonl', 'w') as file:\n"
        "    for step in range(first + 1, first + (41 if first == 0 else 6)):\n"
        "        line = {'t': time.time(), 'kind': 'train', 'step': step, 'loss': 1 / step}\n"
        "        file.write(json.dumps(line) + '\\n')\n"
        "kept.write_text('40')\n"
        "raise SystemExit(first == 0)\n"
    )
    job = service.store.create(Request(name="anew", script=str(script)))
    service.start()
    assert service.wait(job).state is State.FAILED
    service.store.ask_resume(job.id)
    assert service.wait(job, State.DONE, State.LOST).state is State.DONE
    assert sorted(point.step for point in service.store.points(job.id).items) == list(range(1, 46))


def test_a_visit_that_cannot_be_made_does_not_keep_the_doctor_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process can be started, no file be written: it is said, and whoever asks next is seen."""
    back = threading.Semaphore(0)
    attempt = Attempt(number=1, token=1, engine="test", handle=None, created=0.0)
    jobs = [
        Job(id=f"{number:012}", request=Request(name="n"), state=State.DONE, created=0.0, number=number,
            attempts=(attempt,))
        for number in range(3)
    ]  # fmt: skip
    for job in jobs:
        begin_record(JobFolder(root=tmp_path, id=job.id), None)
    doctor = Doctor(tmp_path, lambda id_: back.release())

    def refuse(*given: Any, **named: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as full:
        full.setattr(doctoring, "start_doctor", refuse)
        doctor.ask(jobs[0])
        assert back.acquire(timeout=60)
        full.setattr(doctoring, "whole_file", refuse)
        doctor.ask(jobs[1])
        assert back.acquire(timeout=60)
    told = "failed: no process could be started: [Errno 12] Cannot allocate memory"
    assert [doctor.told(job.id) for job in jobs] == [told, None, None]
    assert "cannot be kept" in capsys.readouterr().err
    doctor.ask(jobs[2])
    assert back.acquire(timeout=60)
    last = doctor.told(jobs[2].id)
    assert last is not None
    assert last.startswith("failed: ")
    doctor.close()
