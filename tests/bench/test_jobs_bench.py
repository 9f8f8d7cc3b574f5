"""The benchmark of the jobs server: its load, its figures and its page, on a second of it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.bench import jobs, jobs_load
from stoker.bench.catalogue import Options
from stoker.bench.result import Result
from stoker.errors import UsageError
from stoker.jobs import Client
from stoker.jobs.server.serving import Running, Serving
from stoker.jobs.settings import Settings

RUN: dict[str, Any] = {
    "store": "sqlite", "repeat": 0, "requests": 12000, "rate": 200.0,
    "statuses": {200: 11400, 201: 599, 503: 1},
    "p50_ms": 2.0, "p95_ms": 5.0, "p99_ms": 9.0, "max_ms": 30.0, "late_p99_ms": 0.5,
    "p99_ms_by_kind": {"create": 20.0, "show": 8.0}, "events": 900, "broken_streams": 0,
}  # fmt: skip


def test_a_load_is_sent_at_its_rate_and_every_answer_is_timed(tmp_path: Path) -> None:
    """All requests are answered, streams stay open, and none of it is an error."""
    serving = Serving(settings=Settings(root=tmp_path / "jobs"), port=0, dispatches=False)
    with Running(serving) as server:
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(lambda url: ready.set(),))
        thread.start()
        assert ready.wait(60)
        try:
            job = Client(server.url).submit(workload="sar").id
            load = jobs_load.Load(rate=100, seconds=1, streams=4, connections=4)
            told = jobs_load.to_json(asyncio.run(jobs_load.send(server.url, load, [job])))
        finally:
            server.stop()
            thread.join(60)
    assert told["requests"] == 100 and set(told["statuses"]) <= {200, 201} and told["broken_streams"] == 0
    assert 0 < told["p50_ms"] <= told["p95_ms"] <= told["p99_ms"] <= told["max_ms"]
    assert told["events"] > 0


def test_figures_are_medians_with_the_worst_beside_and_errors_counted() -> None:
    """The default store's go without its name, another's with it."""
    runs = [
        RUN,
        {**RUN, "p99_ms": 11.0},
        {**RUN, "p99_ms": 40.0},
        {**RUN, "store": "postgresql", "p99_ms": 7.0},
    ]
    figures = jobs.figures_of(runs)
    assert (figures["jobs_p99_ms"], figures["jobs_p99_worst_ms"], figures["jobs_errors"]) == (11.0, 40.0, 3)
    assert figures["jobs_postgresql_p99_ms"] == 7.0 and figures["jobs_p99_limit_ms"] == 100
    page = jobs.page([Result(bench="jobs", hardware="cpu", figures=figures, runs=runs, versions={})])
    assert "| SQLite | 2.0 | 5.0 | 11.0 | 40.0 |" in page and "| PostgreSQL | 2.0 | 5.0 | 7.0 |" in page


def test_a_store_that_there_is_not_is_refused() -> None:
    """With those there are."""
    with pytest.raises(UsageError, match="sqlite, postgresql"):
        next(jobs.measure(Options(parts=("oracle",))))


def test_a_quantile_is_one_of_the_values() -> None:
    """The least that so large a share does not exceed; of one value, that one."""
    values = [float(number) for number in range(1, 101)]
    assert [jobs_load.quantile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [
        50.0,
        95.0,
        99.0,
        100.0,
    ]
    assert jobs_load.quantile([3.0], 0.99) == 3.0
