"""The loop with one thread in each of its processes, in a scratch run of its own.

Threads beyond the cores cost switches and waiting at every barrier; how much, only a run without them tells.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.doctor.evidence import Evidence, read
from stoker.doctor.method import Stretch
from stoker.doctor.other_workers import LEAST_SECONDS, Hold
from stoker.doctor.parts import Parts
from stoker.watch import Record

_LEAST_STEPS = 8
_PARTS = Parts(
    observe_steps=20,
    observe_seconds=2.5,
    observe_most=5.0,
    replay_steps=0,
    drain_seconds=0.0,
    storage_seconds=0.0,
    threads=1,
)
# Read by libraries when they are loaded, which may be before the script's first line.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def variables(threads: int | None) -> dict[str, str]:
    """What the environment of a run says that is to have so many threads; None: what it says already."""
    return {} if threads is None else dict.fromkeys(_VARIABLES, str(threads))


def try_one_thread(
    hold: Hold, folder: Path, name: str, found: Evidence, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """What a step takes then, where there are more threads than cores for them."""
    if not found.crowded:
        return {}
    if seconds < LEAST_SECONDS:
        return {"missing": {"threads": "the budget was used up before one thread was tried"}}
    tell("trying one thread in each process")
    result = hold(f"{name}-thread1", _PARTS, seconds)
    held = Stretch(name="the loop with one thread", seconds=result.seconds, note="a scratch run of its own")
    record = folder / f"{name}-thread1"
    seen = None
    if (record / "run.json").exists() and any(one.kind == "observed" for one in result.messages):
        seen = read(Record.open(record), result.messages, found.host, {})
    if seen is None or seen.steps < _LEAST_STEPS:
        why = f"with one thread: {result.outcome}, {result.reason}"
        return {"missing": {"threads": why}, "method": (held,)}
    return {"one_thread": seen.step * (1 - seen.startup), "method": (held,)}
