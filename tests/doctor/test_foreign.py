"""What others took from a run: by what they used, and by what the run's own threads waited for."""

from typing import Any

import pytest

from stoker.doctor.foreign import foreign_cores


def line(t: float, *, others: float, queued: float | None = None, worker: float | None = None) -> Any:
    """Counters after so many seconds: the run uses half a core, its worker another half."""
    return {
        "t": t, "pid": 1, "machine_user_s": t + others, "cpu_s": 0.5 * t, "queued_s": queued,
        "processes": [{"pid": 2, "cpu_s": 0.5 * t, "queued_s": worker}],
    }  # fmt: skip


def test_others_take_no_more_than_they_use() -> None:
    """However long the run's own processes queue behind each other."""
    lines = [line(0, others=0, queued=0, worker=0), line(10, others=1, queued=20, worker=20)]
    assert foreign_cores(lines) == pytest.approx(0.1)


def test_others_take_no_more_than_the_run_queues_for() -> None:
    """On a machine with cores to spare they take nothing; workers queue too."""
    lines = [line(0, others=0, queued=0, worker=0), line(10, others=40, queued=0.2, worker=0.3)]
    assert foreign_cores(lines) == pytest.approx(0.05)


def test_where_queueing_is_not_told_all_that_others_use_counts() -> None:
    """Off Linux, or of a worker that does not tell."""
    lines = [line(0, others=0, queued=0), line(10, others=40, queued=0.2)]
    assert foreign_cores(lines) == pytest.approx(4.0)
    later = line(10, others=40, queued=0.2, worker=0.0)
    assert foreign_cores([line(0, others=0), later]) == pytest.approx(4.0)


def test_a_worker_that_began_later_counts_with_all_that_it_waited() -> None:
    """It stood in the queue since then."""
    first = {**line(0, others=0, queued=0, worker=0), "processes": []}
    assert foreign_cores([first, line(10, others=40, queued=0.2, worker=0.3)]) == pytest.approx(0.05)
