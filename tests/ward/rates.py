"""Runs a case under the probe, and tells what it did: steps, rate, weights, its workers' memory."""

import itertools
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.ward.catalogue import Case, prepared

PROBE = Path(__file__).with_name("probe.py")


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a run of a case showed. `rate` is steps a second, `None` where it made fewer than two."""

    steps: int
    rate: float | None
    longest_s: float | None
    worker_bytes: int
    digest: str | None
    output: str
    # It ended before the probe would have ended it, and not because its work was done.
    died: bool


def run(
    case: Case, *, seconds: float = 1e9, steps: int = 10**9, limit: float = 60.0, renamed: bool = False
) -> Told:
    """Run a case until the probe ends it, it ends itself, or `limit` seconds are over."""
    with prepared(case, renamed=renamed) as ready:
        out = ready.cwd.parent / "told"
        env = {**ready.env, "PROBE_OUT": str(out), "PROBE_SECONDS": str(seconds), "PROBE_STEPS": str(steps)}
        with (ready.cwd.parent / "output").open("w+") as said:
            process = subprocess.Popen(
                ready.command(str(PROBE)),
                env=env,
                cwd=ready.cwd,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                returned: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                returned = None
            finally:
                _end(process)
            said.seek(0)
            output = said.read()
        told = json.loads(out.read_text()) if out.exists() else {"times": [], "digest": None, "uss": []}
    times = told["times"]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Told(
        steps=len(times),
        rate=len(gaps) / (times[-1] - times[0]) if gaps else None,
        longest_s=max(gaps, default=None),
        worker_bytes=sum(told["uss"]),
        digest=told["digest"],
        output=output,
        died=not times and returned not in (0, None),
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the whole session that was started: workers and ranks outlive a probe that ends at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it is gone
    process.wait()
