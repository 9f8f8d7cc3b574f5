"""Memory of the machine: what was promised to those that run is not free."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.admission import find_place, need_of, promised
from stoker.jobs.engines.engine import Place, Running
from stoker.jobs.engines.local import LocalEngine
from stoker.jobs.job import Attempt, Job, Request
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store

GIB = 1 << 30


def job_for(ram_gib: int | None = None, **known: Any) -> Job:
    asked = None if ram_gib is None else ram_gib * GIB
    request = Request(name="n", workload="sar", ram_bytes=asked)
    return Job(id="0" * 12, request=request, state=State.QUEUED, created=0.0, number=1, **known)


def running(
    ram_gib: int | None = None, *, rss_gib: int | None = None, told: bool = True, **known: Any
) -> Running:
    """One that runs; `told`: this attempt has told of a step, and with it of its memory."""
    attempt = Attempt(
        number=1, token=1, engine="local", handle=None, created=0.0, last_step=1 if told else None
    )
    memory = None if rss_gib is None else {"rss_bytes": rss_gib * GIB, "peak_bytes": 30 * GIB}
    return Running(job=job_for(ram_gib, memory=memory, attempts=(attempt,), **known), handle=None)


def place_beside(*others: Running, job: Job, tmp_path: Path, free_gib: int = 64) -> Place | str:
    engine = LocalEngine(Settings(root=tmp_path, slots=9), memory_free=lambda: free_gib * GIB)
    return engine.find_place(job, list(others))


def test_jobs_that_start_together_do_not_share_the_same_memory(tmp_path: Path) -> None:
    """Three of 40 GiB with 64 GiB free: one starts; the others wait for what it was promised."""
    store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    settings = Settings(root=tmp_path, slots=3)
    engine = LocalEngine(settings, memory_free=lambda: 64 * GIB)
    engine.start = lambda job, attempt, place: "elsewhere/1/1.0/"  # type: ignore[method-assign]
    request = Request(name="n", script="s", ram_bytes=40 * GIB)
    jobs = [store.create(request) for _ in range(3)]
    Dispatcher(settings, store, engine).look()
    assert [store.job(job.id).state for job in jobs] == [State.STARTING, State.QUEUED, State.QUEUED]
    assert store.job(jobs[1].id).waits_for == (
        "waits for memory: it needs 40.0 GiB, and 24.0 GiB are free: 64.0 GiB, "
        "less 40.0 GiB that those that run may still take"
    )
    store.close()


def test_what_a_job_has_taken_is_not_taken_twice(tmp_path: Path) -> None:
    """Memory in use is not free any more; only the rest of what it was promised is kept for it."""
    job = job_for(40)
    assert isinstance(place_beside(running(40, rss_gib=10), job=job, tmp_path=tmp_path), str)
    assert place_beside(running(40, rss_gib=20), job=job, tmp_path=tmp_path) == Place()
    assert place_beside(running(40, rss_gib=50), job=job, tmp_path=tmp_path) == Place()
    assert place_beside(running(), job=job, tmp_path=tmp_path) == Place()


def test_what_an_earlier_attempt_had_is_no_memory_of_this_one() -> None:
    """A resumed job has taken nothing yet; where it asked for nothing, it may take what it took then."""
    assert promised([running(40, rss_gib=35).job]) == 5 * GIB
    assert promised([running(40, rss_gib=35, told=False).job]) == 40 * GIB
    assert promised([running(rss_gib=20, told=False).job]) == 30 * GIB
    assert promised([running(rss_gib=20).job]) == 0, "one that asked for nothing keeps nothing"
    assert promised([running().job]) == 0


def test_a_resumed_job_needs_what_it_was_seen_to_take(tmp_path: Path) -> None:
    """Where it was not asked for with a figure; alone on the machine it may try again whatever that was."""
    seen = job_for(memory={"rss_bytes": GIB, "peak_bytes": 30 * GIB})
    assert (need_of(seen), need_of(job_for(40, memory=seen.memory)), need_of(job_for())) == (
        30 * GIB, 40 * GIB, None,
    )  # fmt: skip
    told = place_beside(running(), job=seen, tmp_path=tmp_path, free_gib=20)
    assert told == "waits for memory: it needs 30.0 GiB, and 20.0 GiB are free"
    assert place_beside(running(), job=seen, tmp_path=tmp_path) == Place()
    assert place_beside(job=seen, tmp_path=tmp_path, free_gib=20) == Place()
    asked = replace(seen, request=replace(seen.request, ram_bytes=30 * GIB))
    assert isinstance(place_beside(job=asked, tmp_path=tmp_path, free_gib=20), str)


def test_where_memory_cannot_be_read_nobody_waits_for_it() -> None:
    """None is not zero."""
    assert (
        find_place(job_for(40), cards=(), no_cards=None, taken=(), without_card=0, slots=1, memory_free=None)
        == Place()
    )
