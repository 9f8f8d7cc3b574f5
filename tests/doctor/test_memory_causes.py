"""Memory and threads judged by numbers alone: each cause by its evidence, and not by its look-alike's."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from stoker.doctor.ending import Ending
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.resources import Memory, Threads
from stoker.doctor.verdict import reach

MB = 1 << 20
HOST = {"cpus": 8, "usable_cores": 8.0, "quota_cores": None, "cpuset_cores": 8, "shm_free_bytes": 64 * MB}
LOADER = LoaderFacts(name="DataLoader", workers=4, batch_size=32, prefetch=2, epochs=1)
MAKING = {
    "batches": 50, "read": 0.001, "transform": 0.038, "collate": 0.0, "queued": 0.0, "handoff": 0.0005,
    "pin": None, "cpu": 0.039, "bytes": 1e6, "disk": 0.0, "faults": 0.0, "calls": {"item": 32.0},
}  # fmt: skip


def run(**more: Any) -> Evidence:
    """A step of 40 ms that waits for nothing, on 8 cores, from 4 workers."""
    plain = Evidence(
        step=0.04,
        shares={"wait": 0.01, "forward": 0.5, "backward": 0.4, "update": 0.05, "other": 0.04, "copy": 0.0},
        steps=100,
        samples=32.0,
        compute=0.0398,
        drawn=LOADER,
        making=MAKING,
        batch_bytes=MB,
        host=HOST,
        growth=1.0,
        stalls=0.0,
        process={"affinity": 8, "parameters": {"float32": 100}},
        threads=Threads(main=8, worker=1, workers=4),
        memory=Memory(copied=1.0 * MB, born=200.0 * MB, came_back=0.0, read=0.0, filled=0.5, stalled=0.0),
    )
    return replace(plain, **more)


# A step of which 30 ms are waiting for data.
WAITS: dict[str, Any] = {"shares": {"wait": 0.75, "other": 0.03}, "compute": 0.01, "loader": 0.02}
SHM = Ending(lacked="shm", sure=True, why="No space left on device (28)")
BUS = Ending(lacked="shm", sure=False, why="a bus error")
KILL = Ending(lacked="memory", sure=True, why="the kernel killed a process", oom_kills=1)
GUARD = Ending(lacked="memory", sure=True, why="476 MiB of memory is left", held=True)
CROWD = Threads(main=8, worker=8, workers=4)
PRESSED = Memory(limit=900 * MB, filled=0.99, came_back=30.0 * MB, read=35.0 * MB, stalled=0.1)
GROWS = Memory(growing=100.0 * MB, held=900 * MB)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (run(), "healthy"),
        # Each worker goes on to copy what it was born with: no time is lost, and it is no leak.
        (run(memory=Memory(copied=19.0 * MB, born=200.0 * MB)), "copy-on-access"),
        (run(memory=Memory(copied=19.0 * MB, born=900.0 * MB)), "copy-on-access"),
        (run(memory=Memory(copied=4.0 * MB, born=200.0 * MB)), "healthy"),
        (run(memory=Memory(copied=0.0, born=200.0 * MB, growing=50.0 * MB, held=900 * MB)), "healthy"),
        # Batches found no room, before a step was made or after.
        (run(ending=SHM), "small-shm"),
        (run(step=inf, shares={}, steps=0, compute=None, making={}, process={}, ending=SHM), "small-shm"),
        # A bus error is that of /dev/shm where the queue may fill it; a mapped file can end so too.
        (run(ending=BUS, batch_bytes=16 * MB), "small-shm"),
        (run(ending=BUS, batch_bytes=MB), "healthy"),
        (run(batch_bytes=16 * MB), "small-shm"),
        (run(batch_bytes=16 * MB, drawn=replace(LOADER, workers=0)), "healthy"),
        (run(ending=KILL), "ram-pressure"),
        (run(step=inf, shares={}, steps=0, compute=None, making={}, process={}, ending=KILL), "ram-pressure"),
        (run(ending=GUARD, memory=GROWS), "ram-pressure"),
        # It filled its group so soon that nobody saw it grow.
        (run(ending=GUARD), "ram-pressure"),
        # Stopped by the diagnosis itself, in a small container that it does not fill.
        (run(ending=GUARD, memory=replace(GROWS, growing=0.0)), "healthy"),
        (run(**WAITS, memory=PRESSED), "ram-pressure"),
        # A full group is full of page cache; and what is read for the first time was never pushed out.
        (run(**WAITS, memory=replace(PRESSED, came_back=0.0)), "cpu-transform"),
        (run(**WAITS, memory=replace(PRESSED, filled=0.4, stalled=0.0)), "cpu-transform"),
        # Busy cores: with one thread each the step is half as long, or it is not.
        (run(**WAITS, threads=CROWD, one_thread=0.02), "thread-oversubscription"),
        (run(**WAITS, threads=CROWD, one_thread=0.041), "cpu-transform"),
        (run(threads=Threads(main=64), one_thread=0.025), "thread-oversubscription"),
        (run(threads=Threads(main=64)), "healthy"),
    ],
)  # fmt: skip
def test_each_cause_is_named_by_its_own_evidence(found: Evidence, cause: str) -> None:
    """First, before whatever else is true of the run."""
    assert reach(found).cause == cause


def test_workers_with_a_mask_of_their_own_are_told() -> None:
    """The process may use all cores; only its workers sit on one, and the loop waits for them."""
    found = run(**WAITS, threads=Threads(main=1, worker=1, workers=4, worker_cores=1))
    assert reach(found).cause == "cpu-affinity"
    assert "cpu-affinity" in reach(run(threads=Threads(main=1, worker_cores=8))).eliminated


def test_a_mask_whose_cores_stand_idle_is_not_what_a_loop_waits_for() -> None:
    """A job kept to 4 of 8 cores reads from a slow store: its workers use one, and none waits for another."""
    making = {**MAKING, "read": 0.038, "transform": 0.001, "cpu": 0.002, "disk": 9e5}
    slow = {**WAITS, "making": making, "loader_with": (8, 0.0199), "process": {"affinity": 4}}
    verdict = reach(run(**slow, cores=1.1))
    assert verdict.cause == "storage-latency"
    told = "1.1 of 4 cores are used, and 0% of making a batch is waiting for a core"
    assert verdict.eliminated["cpu-affinity"] == told
    # The workers alone sit on one core, and hardly use it: what the process itself uses is elsewhere.
    bound = {**slow, "process": {"affinity": 8}, "threads": Threads(main=1, workers=4, worker_cores=1)}
    assert "cpu-affinity" in reach(run(**bound, cores=3.0)).eliminated


def test_a_mask_is_named_where_its_cores_are_full_or_waited_for() -> None:
    """Full by what the process uses, or waited for in making a batch, though others use them."""
    slow = {**WAITS, "making": {**MAKING, "cpu": 0.002}, "process": {"affinity": 4}}
    assert reach(run(**slow, cores=3.9)).cause == "cpu-affinity"
    queued = {**slow, "making": {**MAKING, "cpu": 0.002, "queued": 0.02}}
    assert reach(run(**queued, cores=1.1)).cause == "cpu-affinity"


def test_a_mask_is_neither_named_nor_ruled_out_where_nothing_tells_whether_cores_are_short() -> None:
    """No counter of the cores was read, nor how long a worker waits for one."""
    for making in ({}, {**MAKING, "queued": None, "cpu": 0.002}):
        verdict = reach(run(**WAITS | {"making": making, "process": {"affinity": 4}}))
        assert "cpu-affinity" in verdict.untold


def test_a_loader_that_more_workers_make_faster_lacks_workers_first() -> None:
    """Transforms that keep one worker busy leave the other cores to more of them."""
    found = run(**{**WAITS, "loader": 0.038}, loader_with=(8, 0.019))
    assert [one.cause for one in reach(found).named] == ["too-few-workers", "cpu-transform"]
    assert reach(replace(found, loader_with=(8, 0.037))).cause == "cpu-transform"


def test_threads_are_not_ruled_out_by_a_run_that_was_not_held() -> None:
    """More threads than cores, and nobody has tried one: it cannot be told."""
    verdict = reach(run(threads=Threads(main=64)))
    assert "thread-oversubscription" in verdict.untold
    assert "thread-oversubscription" in reach(run()).eliminated


def test_a_quota_that_is_used_up_comes_before_the_threads_that_use_it() -> None:
    """Eight threads in the time of one core: the cure of both is to know of the quota."""
    host = {**HOST, "quota_cores": 1.0, "usable_cores": 1.0}
    verdict = reach(run(**WAITS, host=host, throttled=0.9, cores=1.0, one_thread=0.02))
    assert verdict.cause == "cpu-quota"
    assert "thread-oversubscription" in [one.cause for one in verdict.named[1:]]


def test_a_quota_that_is_met_now_and_then_comes_after_what_costs_more() -> None:
    """An eighth of the periods lose a part of themselves, half of the cores idle, and a store is slow."""
    making = {**MAKING, "read": 0.038, "transform": 0.001, "cpu": 0.002, "disk": 9e5}
    found = run(**WAITS, making=making, loader_with=(8, 0.0199), host={**HOST, "quota_cores": 4.0})
    verdict = reach(replace(found, throttled=0.125, cores=2.0))
    assert verdict.cause == "storage-latency"
    assert "cpu-quota" in [one.cause for one in verdict.named[1:]]
    assert reach(replace(found, throttled=0.125, cores=3.9)).cause == "cpu-quota"


def test_a_script_that_made_no_step_has_a_verdict_and_no_rate() -> None:
    """It is not told to be healthy for want of a measurement."""
    verdict = reach(run(step=inf, shares={}, steps=0, compute=None, making={}, process={}, ending=BUS))
    assert (verdict.cause, verdict.rate) == ("unknown", 0.0)


def test_memory_held_twice_stands_after_what_takes_time() -> None:
    """A share of the step that was measured comes first, however sure the copies are."""
    copies = Memory(copied=80.0 * MB, born=200.0 * MB)
    idle = {"batches": 40, "read": 0.0, "transform": 0.001, "collate": 0.0, "queued": 0.0, "handoff": 0.015}
    named = reach(run(**WAITS, making=idle, memory=copies)).named
    assert (named[0].cause, named[-1].cause) == ("handoff", "copy-on-access")


def test_a_loader_that_keeps_up_is_not_what_the_loop_waits_for() -> None:
    """A loop that others take the cores from waits too; what its loader does is no cause of that."""
    making = {**MAKING, "transform": 0.004, "collate": 0.002, "cpu": 0.006, "handoff": 0.0018}
    waits = run(shares={"wait": 0.11}, compute=0.028, loader=0.0046, making=making, step=0.038)
    verdict = reach(replace(waits, memory=Memory(copied=36.0 * MB, born=326.0 * MB)))
    assert verdict.cause == "copy-on-access"
    assert {"handoff", "cpu-transform"} <= verdict.eliminated.keys()
    slow = reach(replace(waits, making={**making, "handoff": 0.01}))
    assert slow.cause == "handoff"
