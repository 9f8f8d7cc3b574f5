"""What the observer's record of a job tells: `stoker doctor` on the record alone, in a child of low priority.

With experiments it would tell more; those need the script to run aside, and are asked for by a person.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

# The doctor tells nothing from fewer.
_LEAST_STEPS = 2
# Below this share of the step, waiting for data is not what a sentence begins with.
_WORTH_TELLING = 0.1


class Examination:
    """The doctor, looking at a record. It prints into a file: a pipe that nobody reads would hold it up."""

    def __init__(self, record: Path) -> None:
        self.began = time.monotonic()
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - open until it is read
        words = ("--json", "--no-report", str(record))
        try:
            self.process = start_doctor(*words, out=self._out, errors=subprocess.DEVNULL)
        except BaseException:
            self._out.close()
            raise

    def read(self) -> dict[str, Any] | None:
        """The verdict, once the process has ended; None where it found nothing to judge, or was ended."""
        assert self.process.poll() is not None
        with self._out:
            self._out.seek(0)
            told = self._out.read()
        if self.process.returncode or not told.strip():
            return None
        found = json.loads(told)
        verdict = found["verdict"]
        return {
            "cause": verdict["cause"],
            "share": verdict["share"],
            "sentence": sentence(
                verdict["cause"], verdict["share"], verdict["why"], found.get("shares") or {}
            ),
        }

    def end(self) -> None:
        """Not wanted any more."""
        self.process.kill()
        self.process.wait()
        self._out.close()


def start_doctor(*words: str, out: IO[bytes] | int, errors: int) -> "subprocess.Popen[bytes]":
    """`stoker doctor` as a child of low priority."""
    child = subprocess.Popen(
        [sys.executable, "-m", "stoker", "doctor", *words],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=errors,
        # Its threads would be the training's cores, and its context the training's memory.
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    if sys.platform != "win32":
        os.setpriority(os.PRIO_PROCESS, child.pid, 10)
    return child


def begin(record: Path) -> Examination | None:
    """Start the doctor on a record; None where there is too little in it."""
    return Examination(record) if _has_steps(record / "rank0" / "steps.jsonl") else None


def sentence(cause: str, share: float | None, why: list[str], shares: dict[str, float | None]) -> str:
    """In one line: "waiting for data 41%: query-per-sample".

    >>> sentence("query-per-sample", 0.4, ["64 queries a batch"], {"wait": 0.41})
    'waiting for data 41%: query-per-sample'
    >>> sentence("healthy", 0.0, ["waiting for data is 1% of the step"], {"wait": 0.01})
    'healthy: waiting for data is 1% of the step'
    """
    wait = shares.get("wait")
    if cause not in ("healthy", "compute-bound") and wait is not None and wait >= _WORTH_TELLING:
        return f"waiting for data {wait:.0%}: {cause}"
    told = why[0] if why else "n/a" if share is None else f"{share:.0%} of the step"
    return f"{cause}: {told}"


def _has_steps(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return sum(1 for _, _ in zip(file, range(_LEAST_STEPS), strict=False)) == _LEAST_STEPS
    except FileNotFoundError:
        return False
