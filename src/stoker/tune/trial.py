"""A trial: the user's own loop in a child process, with changes put over it, measured or stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from stoker.scratch import Guards, Limits, Result, run
from stoker.scratch import Plan as ScratchPlan
from stoker.tune.measure import as_argument
from stoker.tune.stretches import WARM_STEPS, Rates, length, rates
from stoker.watch import Record

_HOOK = "stoker.tune.measure:prepare"
# Without a step for so long, a trial hangs.
IDLE_SECONDS = 60.0
# measured: it has a rate. stopped: a guard did that. failed: the script's own error, or a setting's that it
# cannot run with. crashed: by a signal. hung: no step for long. short: it ended, or its time did, before a
# stretch was whole. thrashed: the card's memory was full again and again.
Outcome = Literal["measured", "stopped", "failed", "crashed", "hung", "short", "thrashed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of one. `first`: seconds to the end of its first step (imports, cold files, compiling)."""

    settings: Mapping[str, Any]
    outcome: Outcome
    reason: str
    rates: Rates | None
    first: float | None
    seconds: float
    vram: int | None
    told: tuple[str, ...]
    record: Path | None

    @property
    def rate(self) -> float | None:
        """The median over its stretches."""
        return median(self.rates.each) if self.rates is not None else None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            "settings": dict(self.settings),
            "outcome": self.outcome,
            "reason": self.reason,
            "rate": self.rate,
            "rates": list(self.rates.each) if self.rates else [],
            "unit": self.rates.unit if self.rates else None,
            "stretch_steps": self.rates.stretch_steps if self.rates else None,
            "size": self.rates.size if self.rates else None,
            "disturbed": self.rates.disturbed if self.rates else None,
            "first": self.first,
            "seconds": self.seconds,
            "vram": self.vram,
            "told": list(self.told),
            "record": None if self.record is None else str(self.record),
        }


def hold(
    command: Sequence[str],
    settings: Mapping[str, Any],
    *,
    folder: Path,
    seconds: float = 8.0,
    most: float = 120.0,
    idle: float = IDLE_SECONDS,
    guards: Guards | None = None,
) -> Trial:
    """Hold a trial in a folder of its own: for so many seconds after its first steps; ended at `most`."""
    folder.mkdir(parents=True, exist_ok=True)
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument=as_argument(folder, "record", settings, seconds),
            limits=Limits(seconds=most, idle_seconds=min(idle, most)),
            guards=guards or Guards(),
            writable=(folder,),
            output=folder,
        )
    )
    return read(settings, result, folder / "record")


def read(settings: Mapping[str, Any], result: Result, record: Path) -> Trial:
    """What came of a scratch run."""
    told = {message.kind: message for message in result.messages}
    measured = told["measured"].body if "measured" in told else {}
    warm = told["warm"].body["steps"] if "warm" in told else WARM_STEPS
    found = _rates(record, warm) if result.outcome in ("done", "ended-early", "timed-out") else None
    outcome, reason = _outcome(result, found, told.get("thrash"))
    return Trial(
        settings=settings,
        outcome=outcome,
        reason=reason,
        rates=found if outcome == "measured" else None,
        first=told["first"].at if "first" in told else None,
        seconds=result.seconds,
        vram=measured.get("vram"),
        told=tuple(measured.get("told", ())),
        record=record if (record / "run.json").exists() else None,
    )


def _rates(record: Path, warm: int) -> Rates | None:
    if not (record / "run.json").exists():
        return None
    ranks = Record.open(record).ranks
    rank = ranks[min(ranks)]
    steps = list(rank.steps())[warm - 1 :]
    if len(steps) < 2:
        return None
    stretch = length(rank.about.get("loaders") or [], len(steps) - 1)
    counters = list(rank.resources())
    found = rates([step.t for step in steps], [step.samples for step in steps], stretch, counters)
    return found if found.each else None


def _outcome(result: Result, found: Rates | None, thrash: Any) -> tuple[Outcome, str]:
    if thrash is not None:
        return "thrashed", f"the allocator ran out of memory {thrash.body['retries']} times"
    if result.guard == "idle":
        return "hung", result.reason
    if result.outcome == "stopped":
        return "stopped", result.reason
    if result.outcome in ("failed", "crashed"):
        said = result.stderr_tail.strip().splitlines()
        reason = f"{result.reason}: {said[-1]}" if said else result.reason
        return ("failed" if result.outcome == "failed" else "crashed"), reason
    if found is None:
        return "short", f"{result.steps or 0} steps make no whole stretch ({result.outcome}: {result.reason})"
    return "measured", ""
