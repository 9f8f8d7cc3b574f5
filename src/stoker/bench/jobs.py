"""`stoker bench jobs`: how fast a jobs server answers while it is watched and while a job runs.

A real `stoker serve` with its dispatcher, a script that runs as a job and writes a curve, 20 open streams,
and 200 requests a second for a minute: how a job stands, the list, curves, logs, and one new job in twenty.
The load comes from the same machine and takes part of it. 100 ms for 99 of 100 requests is the limit, on
SQLite and on PostgreSQL.
"""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker.bench import jobs_load
from stoker.bench.catalogue import Options
from stoker.bench.page import number, origin, table
from stoker.bench.result import Result, commit_here, versions_here
from stoker.errors import BenchFailed, UsageError
from stoker.jobs import Client, Job

LIMIT_MS = 100.0
RATE, SECONDS, STREAMS = 200.0, 60.0, 20
_PARTS = ("sqlite", "postgresql")
_START_S = 120.0
_CURVE = 600
# Runs as a job until it is told to stop: ten points of a curve and a line of its log each second.
_SCRIPT = """
import json, os, signal, time
from pathlib import Path
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
with (Path(os.environ["STOKER_JOB_FOLDER"]) / "metrics.jsonl").open("a") as journal:
    step = 0
    while not ended:
        step += 1
        journal.write(json.dumps({"t": time.time(), "kind": "train", "step": step, "loss": 1 / step}) + "\\n")
        journal.flush()
        if step % 10 == 0:
            print("step", step, flush=True)
        if step > CURVE:
            time.sleep(0.1)
raise SystemExit(143)
"""


def measure(options: Options) -> Iterator[Result]:
    """As many minutes as there is time for, on each store in turn; one result."""
    parts = tuple(options.parts) or _PARTS
    if unknown := [part for part in parts if part not in _PARTS]:
        raise UsageError(f"no part {unknown[0]!r} of bench jobs: there are {', '.join(_PARTS)}")
    lasts = min(SECONDS, options.seconds)
    repeats = max(1, int(options.seconds // SECONDS))
    runs = []
    for part in parts:
        with _store(part) as url, _serving(url) as client:
            job = _start_job(client)
            _send(client.url, job.id, jobs_load.Load(rate=RATE, seconds=5, streams=STREAMS, seed=99))  # warm
            for repeat in range(repeats):
                load = jobs_load.Load(rate=RATE, seconds=lasts, streams=STREAMS, seed=repeat)
                runs.append({"store": part, "repeat": repeat, **_send(client.url, job.id, load)})
            job.cancel()
            job.wait(_START_S)
    yield Result(
        bench="jobs",
        hardware="cpu",
        figures=figures_of(runs),
        runs=runs,
        versions=versions_here(cores=str(len(os.sched_getaffinity(0)))),
        commit=options.commit or commit_here(),
    )


def figures_of(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over the repeats; the default store's without its name."""
    figures: dict[str, float] = {
        "jobs_rate_asked": RATE,
        "jobs_streams": STREAMS,
        "jobs_p99_limit_ms": LIMIT_MS,
    }
    for part in _PARTS:
        own = [run for run in runs if run["store"] == part]
        if not own:
            continue
        name = "jobs" if part == "sqlite" else f"jobs_{part}"
        for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms", "rate", "events", "broken_streams"):
            figures[f"{name}_{key}"] = statistics.median(run[key] for run in own)
        figures[f"{name}_p99_worst_ms"] = max(run["p99_ms"] for run in own)
        wrong = sum(count for run in own for status, count in run["statuses"].items() if int(status) >= 400)
        figures[f"{name}_errors"] = wrong
    return figures


def _send(url: str, job: str, load: jobs_load.Load) -> dict[str, Any]:
    return jobs_load.to_json(asyncio.run(jobs_load.send(url, load, [job])))


def _start_job(client: Client) -> Job:
    """A job that runs and has a curve."""
    job = client.submit(script="scripts/curve.py", name="the one that runs")
    deadline = time.monotonic() + _START_S
    while not job.metrics().get("train/loss", [])[_CURVE - 1 :]:
        if time.monotonic() > deadline or job.done():
            raise BenchFailed(
                f"the job to watch is {job.state} after {_START_S:g} s: {list(job.logs())[-5:]}"
            )
        time.sleep(0.2)
    return job


@contextlib.contextmanager
def _serving(store: str | None) -> Iterator[Client]:
    """A server in a process of its own, as a user starts it."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-jobs-") as place:
        scripts = Path(place) / "scripts"
        scripts.mkdir()
        (scripts / "curve.py").write_text(_SCRIPT.replace("CURVE", str(_CURVE)))
        words = [sys.executable, "-m", "stoker", "serve", "--port", "0", "--json", "--root", f"{place}/jobs"]
        words += ["--scripts", str(scripts), *(() if store is None else ("--store", store))]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        try:
            line = child.stdout.readline()
            if not line:
                raise BenchFailed(f"stoker serve ended with code {child.wait()} before it listened")
            yield Client(json.loads(line)["url"])
        finally:
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=_START_S)


@contextlib.contextmanager
def _store(part: str) -> Iterator[str | None]:
    """Where the jobs are kept; None is the file that a server makes for itself."""
    if part == "sqlite":
        yield None
        return
    from stoker.ward.postgres import PostgresServer

    with PostgresServer() as server:
        yield server.url


def page(results: Sequence[Result]) -> str:
    """Times of answers, by store."""
    parts = [
        "# A jobs server under load\n",
        f"`stoker serve` with a job that runs, {STREAMS} open streams and {RATE:g} requests a second for a "
        "minute, all on one machine. Times are from when a request was due to the last byte of its answer, "
        f"so a pause is charged to every request in it. The limit is {LIMIT_MS:g} ms for 99 of 100.\n",
    ]
    for result in results:
        figures, rows = result.figures, []
        for name, told in (("jobs", "SQLite"), ("jobs_postgresql", "PostgreSQL")):
            if f"{name}_p99_ms" in figures:
                keys = ("p50_ms", "p95_ms", "p99_ms", "p99_worst_ms", "max_ms")
                cells = [number(figures, f"{name}_{key}", 1) for key in keys]
                cells += [
                    number(figures, f"{name}_{key}") for key in ("rate", "events", "broken_streams", "errors")
                ]
                rows.append([told, *cells])
        head = ["store", "p50 ms", "p95 ms", "p99 ms", "worst p99 ms", "longest ms", "requests/s"]
        head += ["stream events", "streams broken", "errors"]
        parts += [f"## {result.hardware}, {result.date}\n", table(head, rows), origin(result) + "\n"]
        by_kind = [
            [run["store"], *(f"{value:.1f}" for value in run["p99_ms_by_kind"].values())]
            for run in result.runs
        ]
        kinds = sorted(result.runs[0]["p99_ms_by_kind"])
        parts += ["p99 in ms by what was asked, each minute:\n", table(["store", *kinds], by_kind)]
    return "\n".join(parts)
