"""A job in words, for a terminal. Pure but for the table."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.watch.words import duration, figure, percent


def sentences(job: Mapping[str, Any]) -> Iterator[str]:
    """What there is to say of one job, a line each."""
    what = job["workload"] or job["script"]
    yield f"{job['id']}  {job['name']}: {job['state']}{_place(job)}  ({what})"
    if job["waits_for"]:
        yield f"  {job['waits_for']}"
    if job["step"] is not None:
        yield f"  {progress(job)}"
    if job["error"]:
        yield f"  {job['error']}"
    if job["verdict"]:
        yield f"  {job['verdict'].get('sentence') or verdict(job)}"


def progress(job: Mapping[str, Any]) -> str:
    """How far, how fast, how long still; n/a where it was not measured."""
    step, steps, rate = job["step"], job["steps"], job["rate"]
    if step is None:
        return "n/a"
    parts = [f"step {step:,}" + (f" of {steps:,}" if steps else "")]
    if rate is not None:
        parts.append(f"{figure(rate)} samples/s")
    if job["eta_s"] is not None:
        parts.append(f"{duration(job['eta_s'])} to go")
    return ", ".join(parts)


def verdict(job: Mapping[str, Any]) -> str:
    """The cause and its share."""
    told = job["verdict"]
    if not told:
        return "n/a"
    share = told.get("share")
    return f"{told['cause']}" + (f" {percent(share)}" if share is not None else "")


def table(jobs: Sequence[Mapping[str, Any]]) -> None:
    """A line a job."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("job", "name", "what", "state", "progress", "verdict", "age"):
        found.add_column(name, overflow="fold")
    now = time.time()
    for job in jobs:
        state = f"{job['state']}{_place(job)}"
        age = duration(max(0.0, now - job["created"]))
        what = job["workload"] or job["script"]
        # As texts: what a job is called is not markup.
        cells = (job["id"], job["name"], what, state, progress(job), verdict(job), age)
        found.add_row(*(Text(str(cell)) for cell in cells))
    Console().print(found)


def _place(job: Mapping[str, Any]) -> str:
    return "" if job["position"] is None else f", {job['position']}. in the queue"
