"""What counters tell of memory and threads."""

from typing import Any

import pytest

from stoker.doctor.resources import read_memory, read_threads

MB = 1 << 20


def line(t: float, *workers: dict[str, Any], **own: Any) -> dict[str, Any]:
    plain = {"t": t, "cpu_s": t, "cpu_system_s": t / 10, "rss_bytes": 400 * MB, "read_bytes": 0}
    return {**plain, "switches_forced": int(100 * t), "processes": list(workers), **own}


def worker(
    pid: int,
    *,
    anonymous: int,
    written: int | None = None,
    shmem: int = 0,
    faults: int = 90_000,
    threads: int = 3,
) -> dict[str, Any]:
    sized = {} if written is None else {"written_bytes": written * MB, "uss_bytes": (written + 300) * MB}
    return {
        "pid": pid, "rss_bytes": (anonymous + 100) * MB, "anonymous_bytes": anonymous * MB,
        "threads": threads, "shmem_bytes": shmem * MB, "faults_minor": faults, "cpu_s": 0.0,
        "cpu_system_s": 0.0,
        "switches_forced": 0, "read_bytes": 0, **sized,
    }  # fmt: skip


FIRST = worker(7, anonymous=200, faults=5_000)
# When it has settled it has 30 MB for itself, as every worker has.
SETTLED = worker(7, anonymous=200, written=30, faults=8_000)


def copied(*sized: dict[str, Any], first: dict[str, Any] = FIRST) -> tuple[float | None, float | None]:
    """By a worker's first line and by its readings later on, beside a process of 210 MB."""
    lines = [line(0.0, first, anonymous_bytes=210 * MB)]
    later = [line(1.0 + t, one, anonymous_bytes=210 * MB) for t, one in enumerate(sized)]
    ends = worker(7, anonymous=200, written=190)
    memory = read_memory([*lines, line(9.0, ends, anonymous_bytes=210 * MB)], later)
    assert memory is not None
    return memory.copied, memory.born


def test_pages_that_a_worker_was_born_with_and_makes_its_own_were_copied() -> None:
    """It stays at 200 MB, and 50 of them are no longer shared since it settled; how it ends is left out."""
    assert copied(SETTLED, worker(7, anonymous=200, written=80)) == (50 * MB, 200 * MB)


def test_what_every_worker_copies_at_once_does_not_count() -> None:
    """30 MB when it settled, and no more from then on."""
    assert copied(SETTLED, worker(7, anonymous=200, written=30)) == (0.0, 200 * MB)


def test_a_sudden_rise_is_no_reading_of_samples() -> None:
    """Garbage collected among all objects copies much at once; what goes on is in every stretch."""
    still, jumped = worker(7, anonymous=200, written=31), worker(7, anonymous=200, written=94, faults=120_000)
    assert copied(SETTLED, still, jumped)[0] == MB
    assert copied(SETTLED, worker(7, anonymous=200, written=60, faults=95_000), jumped)[0] == 30 * MB


def test_a_worker_that_keeps_more_and_more_copies_nothing() -> None:
    """What it allocates by itself makes it grow by as much: a cache or a leak, and no copy."""
    assert copied(SETTLED, worker(7, anonymous=600, written=430)) == (0.0, 200 * MB)


def test_a_spawned_worker_copies_nothing() -> None:
    """All that it has is its own from the first: there is nothing that it shared."""
    born = worker(7, anonymous=60, written=60, faults=16_000)
    later = worker(7, anonymous=60, written=60, faults=90_000)
    assert copied(later, later, first=born) == (None, None)


def test_batches_in_shared_memory_are_no_copies() -> None:
    """Until the other side maps them they are written to by the worker alone."""
    assert copied(SETTLED, worker(7, anonymous=200, written=90, shmem=50))[0] == 10 * MB


def test_pages_that_others_let_go_of_are_no_copies() -> None:
    """The worker has them alone now, but it has not met a fault for any of them."""
    assert copied(SETTLED, worker(7, anonymous=200, written=90, faults=8_256))[0] == MB


def test_memory_that_was_never_sized_is_not_known() -> None:
    """None, and not that nothing was copied: two readings of the same worker are needed."""
    assert copied() == (None, None)
    assert copied(SETTLED) == (None, None)
    assert copied(SETTLED, worker(8, anonymous=200, written=90)) == (None, None)
    assert read_memory([]) is None


def test_of_a_record_alone_the_lines_tell_what_was_copied() -> None:
    """From a second on, and without the last of them, by which workers may be ending."""
    ends = worker(7, anonymous=200, written=190)
    lines = [FIRST, SETTLED, worker(7, anonymous=200), worker(7, anonymous=200, written=80), ends]
    memory = read_memory([line(float(t), one, anonymous_bytes=210 * MB) for t, one in enumerate(lines)])
    assert memory is not None
    assert memory.copied == 50 * MB


def test_growth_is_told_by_the_second() -> None:
    """Of the later half: what a process takes when it begins is no trend."""
    lines = [
        line(t, worker(7, anonymous=size)) for t, size in ((0.0, 10), (1.0, 200), (2.0, 250), (3.0, 300))
    ]
    memory = read_memory(lines)
    assert memory is not None
    assert memory.growing == 50 * MB


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
        line(1.0, worker(7, anonymous=1), worker(8, anonymous=1)),
        line(3.0, worker(7, anonymous=1, threads=10), worker(8, anonymous=1)),
    ]
    threads = read_threads(lines, 4)
    assert threads is not None
    assert (threads.main, threads.worker, threads.workers, threads.computing) == (4, 8, 2, 20)
    assert threads.switches == 100.0
    assert threads.system == pytest.approx(0.1)
    assert read_threads(lines, None) is None


def test_growth_is_not_known_of_processes_that_have_just_come() -> None:
    """A worker that was there in the last second alone grew by all that it has: since when, nobody saw."""
    lines = [line(0.0), line(1.0), line(2.0, FIRST)]
    for seen, growing in ((lines, None), ([*lines, line(3.0, FIRST)], 0.0)):
        memory = read_memory(seen)
        assert memory is not None
        assert memory.growing == growing
