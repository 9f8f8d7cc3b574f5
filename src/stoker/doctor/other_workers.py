"""The loop with another number of workers, in a scratch run of its own: its steps, then its loader alone.

What a model of cores and queues could only guess (two processes on one machine slow each other down, by how
much depends on both) is measured here for the one number of workers that a plan would propose.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.doctor.advice import OF_STREAMS
from stoker.doctor.evidence import Evidence, read
from stoker.doctor.finding import ALARM
from stoker.doctor.method import Stretch
from stoker.doctor.model import workers_worth_trying
from stoker.doctor.parts import Parts
from stoker.doctor.sizes import read_sizes
from stoker.scratch import Result
from stoker.watch import Record

Hold = Callable[[str, Parts, float], Result]

# Less than this and a script has hardly begun.
LEAST_SECONDS = 10.0
# Batches that a rate of the loader rests on.
_LEAST_BATCHES = 4


def try_workers(
    hold: Hold, folder: Path, name: str, found: Evidence, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """What the loop and its loader do with other workers, where that can still decide something."""
    workers = workers_worth_trying(found)
    if workers is None and found.streams and found.workers and found.lost >= ALARM:
        return {"missing": {"workers": OF_STREAMS}}
    if workers is None:
        return {}
    if seconds < LEAST_SECONDS:
        return {"missing": {"workers": "the budget was used up before other workers were tried"}}
    tell(f"trying {workers} workers in place of {found.workers}")
    result = hold(f"{name}-workers{workers}", _parts(workers, found), seconds)
    held = Stretch(
        name=f"the loop and a drain with {workers} workers",
        seconds=result.seconds,
        note="a scratch run of its own",
    )
    more: dict[str, Any] = {"method": (held,)}
    for message in result.messages:
        if message.kind == "drain" and message.body["batches"] >= _LEAST_BATCHES:
            each = message.body["seconds"] / message.body["batches"]
            more["loader_with"] = (workers, each * found.batches)
    if "loader_with" not in more:
        more["missing"] = {"workers": f"with {workers} workers: {result.outcome}, {result.reason}"}
    own = folder / f"{name}-workers{workers}"
    more["step_with"] = _steps(own, result, found.host, workers)
    more["worker_with"] = _worker(own, workers)
    return more


def _parts(workers: int, found: Evidence) -> Parts:
    """The queue is filled first, then some turns of the workers are observed."""
    turn = 2 * workers * (found.drawn.prefetch or 2 if found.drawn is not None else 2)
    return Parts(
        warm_steps=max(8, min(turn, 40)),
        observe_steps=max(16, 2 * workers),
        observe_seconds=2.5,
        observe_most=5.0,
        replay_steps=0,
        drain_seconds=1.5,
        storage_seconds=0.0,
        workers=workers,
        instead_of=found.workers,
    )


def _worker(folder: Path, workers: int) -> tuple[int, int] | None:
    """Workers, and the private memory of one of them; of the first rank, as all of them make batches."""
    if not (folder / "run.json").exists():
        return None
    ranks = Record.open(folder).ranks
    sizes = read_sizes(list(ranks[min(ranks)].resources())) if ranks else None
    return None if sizes is None or sizes.worker is None else (workers, sizes.worker)


def _steps(
    folder: Path, result: Result, host: Mapping[str, Any], workers: int
) -> tuple[int, float, float | None] | None:
    """Workers, seconds a step (loaders starting up apart), and how far that may be off."""
    if not (folder / "run.json").exists() or not any(one.kind == "observed" for one in result.messages):
        return None
    seen = read(Record.open(folder), result.messages, host, {})
    if seen is None or seen.steps < 2 * workers or seen.workers != workers:
        return None
    return workers, seen.step * (1 - seen.startup), seen.spread
