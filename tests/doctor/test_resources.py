"""What counters tell of memory and threads."""

from typing import Any

import pytest

from stoker.doctor.resources import read_memory, read_threads

MB = 1 << 20


def line(t: float, *workers: dict[str, Any], **own: Any) -> dict[str, Any]:
    plain = {"t": t, "cpu_s": t, "cpu_system_s": t / 10, "rss_bytes": 400 * MB, "read_bytes": 0}
    return {**plain, "switches_forced": int(100 * t), "processes": list(workers), **own}


def worker(
    pid: int, *, rss: int, uss: int | None = None, faults: int = 0, threads: int = 3
) -> dict[str, Any]:
    sized = {} if uss is None else {"uss_bytes": uss * MB}
    return {
        "pid": pid, "rss_bytes": rss * MB, "faults_minor": faults, "threads": threads, "cpu_s": 0.0,
        "cpu_system_s": 0.0, "switches_forced": 0, "read_bytes": 0, **sized,
    }  # fmt: skip


def test_pages_that_were_shared_and_are_no_more_were_copied() -> None:
    """A worker of the same size with more of it for itself: 80 MB of 320 that it shared."""
    lines = [
        line(1.0, worker(7, rss=340, uss=20, faults=1000)),
        line(2.0, worker(7, rss=340, faults=15000)),
        line(3.0, worker(7, rss=342, uss=102, faults=30000)),
    ]
    memory = read_memory(lines)
    assert memory is not None
    assert (memory.copied, memory.shared) == (80 * MB, 320 * MB)


def test_a_worker_that_keeps_more_and_more_copies_nothing() -> None:
    """What it allocates by itself makes its size grow too: a cache or a leak, and no copy."""
    lines = [
        line(1.0, worker(7, rss=340, uss=20, faults=1000)),
        line(2.0, worker(7, rss=540)),
        line(3.0, worker(7, rss=740, uss=420, faults=200000)),
    ]
    memory = read_memory(lines)
    assert memory is not None
    assert memory.copied == 0
    assert memory.growing == 200 * MB


def test_pages_that_others_let_go_of_are_not_copies() -> None:
    """The worker has them alone now, but it has not met a fault for any of them."""
    lines = [
        line(1.0, worker(7, rss=340, uss=20, faults=1000)),
        line(3.0, worker(7, rss=340, uss=220, faults=1256)),
    ]
    memory = read_memory(lines)
    assert memory is not None
    assert memory.copied == MB


def test_memory_that_was_never_sized_is_not_known() -> None:
    """None, and not that nothing was copied."""
    memory = read_memory([line(1.0, worker(7, rss=340)), line(2.0, worker(7, rss=340, uss=40))])
    assert memory is not None
    assert memory.copied is None
    assert read_memory([]) is None


def test_pages_that_came_back_are_told_by_the_second() -> None:
    """By the group's count, beside its limit."""
    more = {"group_memory_limit_bytes": 1000 * MB, "memory_pressure_total_us": 0}
    lines = [
        line(1.0, group_refaults=0, group_memory_bytes=900 * MB, **more),
        line(3.0, group_refaults=512, group_memory_bytes=990 * MB, read_bytes=4 * MB, **more),
    ]
    memory = read_memory(lines)
    assert memory is not None
    assert (memory.came_back, memory.read, memory.filled) == (MB, 2 * MB, 0.99)


def test_threads_of_a_worker_are_those_beside_its_own_two() -> None:
    """One that computes, one that sends, one of torch's: only the first counts."""
    lines = [
        line(1.0, worker(7, rss=1), worker(8, rss=1)),
        line(3.0, worker(7, rss=1, threads=10), worker(8, rss=1)),
    ]
    threads = read_threads(lines, 4)
    assert threads is not None
    assert (threads.main, threads.worker, threads.workers, threads.computing) == (4, 8, 2, 20)
    assert threads.switches == 100.0
    assert threads.system == pytest.approx(0.1)
    assert read_threads(lines, None) is None
