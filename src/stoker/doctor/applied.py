"""A change applied: the script runs aside with other settings, and its rate is measured in whole stretches.

The first steps are dropped. A stretch has at least 50 steps, and as many as two queues hold; it is of whole
turns of the workers, and of whole epochs where they are short. Its rate is steps over wall time, and the rate
of a run the median over its stretches: never over its steps, of which one may wait for many. Stretches during
which other processes used the machine are left out where there are others.
"""

import atexit
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker.doctor import overrides
from stoker.doctor.foreign import FEW, foreign_cores
from stoker.errors import DiagnosisFailed
from stoker.scratch import Child, Guards, Limits, Result, run
from stoker.scratch import Plan as ScratchPlan
from stoker.watch import Record
from stoker.watch.session import Plan, Session

WARM_STEPS = 20
LEAST_STEPS = 50
_HOOK = "stoker.doctor.applied:prepare"
_LEAST_STRETCHES = 3


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a script did with some settings: steps a second, by stretch and in the median."""

    settings: Mapping[str, Any]
    stretch_steps: int
    rates: tuple[float, ...]
    steps: int
    # Stretches that were left out because other processes used the machine; none, where they all were.
    disturbed: int = 0
    all_disturbed: bool = False

    @property
    def rate(self) -> float:
        """Steps a second."""
        return median(self.rates)

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            "settings": dict(self.settings),
            "rate": self.rate,
            "rates": list(self.rates),
            "stretch_steps": self.stretch_steps,
            "steps": self.steps,
            "disturbed": self.disturbed,
            "all_disturbed": self.all_disturbed,
        }


def apply(
    command: Sequence[str],
    settings: Mapping[str, Any],
    *,
    folder: Path,
    workers: int | None = None,
    seconds: float = 12.0,
    most: float = 60.0,
) -> Applied:
    """Run a script aside with settings put over its own, for so many seconds after its first steps.

    `workers` are those of the loader that trains, as the script has it. At `most` seconds it is ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-applied"
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument={
                "runs": str(folder),
                "run": name,
                "settings": dict(settings),
                "workers": workers,
                "seconds": seconds,
            },
            limits=Limits(seconds=most),
            guards=Guards(),
            writable=(folder,),
        )
    )
    if not (folder / name / "run.json").exists():
        raise DiagnosisFailed(_why(command, settings, result, "it made no step"))
    record = Record.open(folder / name)
    rank = record.ranks[min(record.ranks)]
    times = [step.t for step in rank.steps()][WARM_STEPS - 1 :]
    length = stretch_steps(rank.about.get("loaders") or [], len(times) - 1)
    rates = rates_of(times, length)
    quiet = quiet_ones(times, length, list(rank.resources()))
    if not rates:
        raise DiagnosisFailed(
            _why(command, settings, result, f"{len(times)} steps after the first make no stretch of {length}")
        )
    return Applied(
        settings=settings,
        stretch_steps=length,
        rates=tuple(rate for rate, is_quiet in zip(rates, quiet, strict=True) if is_quiet) or rates,
        steps=len(times) - 1,
        disturbed=quiet.count(False),
        all_disturbed=not any(quiet),
    )


def stretch_steps(loaders: Sequence[Mapping[str, Any]], made: int) -> int:
    """Steps in a stretch, by the loader that trains and by how many were made."""
    fed = [loader for loader in loaders if loader.get("fed")]
    if not fed:
        return LEAST_STEPS
    loader = max(fed, key=lambda one: one["fed"])
    workers = loader.get("num_workers") or 0
    queue = workers * (loader.get("prefetch_factor") or 0)
    cycle = max(1, workers)
    epoch = loader.get("length")
    if epoch and epoch * _LEAST_STRETCHES <= made:
        cycle = epoch
    return cycle * ceil(max(LEAST_STEPS, 2 * queue) / cycle)


def rates_of(times: Sequence[float], length: int) -> tuple[float, ...]:
    """Steps a second of each whole stretch, by the moments at which steps ended."""
    ends = range(length, len(times), length)
    return tuple(length / (times[end] - times[end - length]) for end in ends)


def quiet_ones(times: Sequence[float], length: int, lines: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Of each stretch, whether other processes left the machine to it; counters are read once a second."""
    found = []
    for end in range(length, len(times), length):
        others = foreign_cores(lines, times[end - length] - 1.0, times[end] + 1.0)
        found.append(others is None or others <= FEW)
    return found


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of the scratch run: settings put over, and an end once there is enough to measure."""
    overrides.put(argument["settings"], workers=argument["workers"])
    session = Session(Plan(name="applied", root=Path(argument["runs"]), run_id=argument["run"]))
    session.start()
    atexit.register(session.finish, "done")  # of a script that ends before it was measured
    made, began = 0, 0.0

    def stepped(*_: Any) -> None:
        nonlocal made, began
        made += 1
        child.progress(made)
        if made == WARM_STEPS:
            began = time.monotonic()
        if made % LEAST_STEPS or made <= WARM_STEPS or time.monotonic() - began < argument["seconds"]:
            return
        length = stretch_steps([one.to_json() for one in session.account.loaders], made - WARM_STEPS)
        if made - WARM_STEPS > _LEAST_STRETCHES * length:
            session.finish("done")
            child.end(made)

    register_optimizer_step_post_hook(stepped)


def _why(command: Sequence[str], settings: Mapping[str, Any], result: Result, what: str) -> str:
    said = result.stderr_tail.strip().splitlines()
    put = ", ".join(f"{name}={value}" for name, value in settings.items()) or "its own settings"
    return (
        f"{' '.join(command)} with {put} could not be measured: {what} "
        f"({result.outcome}: {result.reason})" + (f"; it said: {said[-1]}" if said else "")
        + ". What to do: give it longer, or another setting"
    )  # fmt: skip
