"""A diagnosis of a script: scratch runs of the user's own loop, and what they showed."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import facts
from stoker.doctor.budget import Budget
from stoker.doctor.evidence import Evidence, read
from stoker.doctor.finding import ALARM
from stoker.doctor.method import Stretch, stretches
from stoker.doctor.plan import Plan
from stoker.doctor.trial import Parts, as_argument
from stoker.doctor.verdict import Verdict, reach
from stoker.errors import DiagnosisFailed
from stoker.scratch import Guards, Limits, Result, run
from stoker.scratch import Plan as ScratchPlan
from stoker.watch import Record

_HOOK = "stoker.doctor.trial:prepare"
# Of a budget, for the first run; the rest is for a drain with other workers.
_FIRST = 0.7
# Less than this and a script has hardly begun.
_LEAST_SECONDS = 10.0
# For the drain alone: the loop must have shown which loader trains.
_DRAIN_ONLY = Parts(
    warm_steps=2, observe_steps=2, observe_seconds=0.0, observe_most=6.0, replay_steps=0, drain_seconds=1.5
)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A verdict, what it rests on, and what to do.

    `command` is what was diagnosed; empty for a record alone.
    """

    verdict: Verdict
    evidence: Evidence
    record: Path
    seconds: float
    shield: str | None
    notes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    method: tuple[Stretch, ...] = ()
    plan: Plan | None = None
    budget: Budget | None = None

    @property
    def rates(self) -> dict[str, float | None]:
        """Steps a second: as a progress bar shows it, by the median step; and over wall time, stalls too."""
        run = self.evidence
        return {"burst": None if not run.typical else 1 / run.typical, "sustained": 1 / run.step}

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as `stoker doctor --json` prints it."""
        run = self.evidence
        return {
            "schema": 1,
            **self.verdict.to_json(),
            "rates": self.rates,
            "plan": None if self.plan is None else self.plan.to_json(),
            "budget": None if self.budget is None else self.budget.to_json(),
            "step_seconds": run.step,
            "shares": dict(run.shares),
            "loader": None if run.drawn is None else vars(run.drawn),
            "making": dict(run.making),
            "not_measured": dict(run.missing),
            "overhead": dict(run.overhead),
            "record": str(self.record),
            "seconds": self.seconds,
            "shield": self.shield,
            "notes": list(self.notes),
            "method": [{"name": one.name, "seconds": one.seconds, "note": one.note} for one in self.method],
        }


def examine_record(record: Record) -> Diagnosis:
    """What a record alone tells: less than experiments do."""
    began = time.monotonic()
    host = ((record.about.get("facts") or {}) if isinstance(record.about, dict) else {}).get("host") or {}
    evidence = read(record, (), host, {"missing": {"replay": "a record alone", "drain": "a record alone"}})
    if evidence is None:
        raise DiagnosisFailed(f"{record.folder} holds fewer than 2 steps: nothing can be told from it")
    return Diagnosis(
        verdict=reach(evidence),
        evidence=evidence,
        record=record.folder,
        seconds=time.monotonic() - began,
        shield=None,
    )


def examine(command: Sequence[str], *, folder: Path, budget: float, tell: Callable[[str], None]) -> Diagnosis:
    """Run the script aside, hold the experiments, and reach a verdict."""
    began = time.monotonic()
    host = _host()
    name = time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    tell("observing the loop, then with held batches, then its loader alone")
    result = _hold(command, folder, name, Parts(), budget * _FIRST)
    record = _record(folder / name, result, command)
    evidence = read(record, result.messages, host, {})
    if evidence is None:
        raise DiagnosisFailed(_why_nothing(result, command))
    more = _drain_with_more(command, folder, name, evidence, budget - (time.monotonic() - began), tell)
    if more:
        evidence = read(record, result.messages, host, more) or evidence
    return Diagnosis(
        verdict=reach(evidence),
        evidence=evidence,
        record=record.folder,
        seconds=time.monotonic() - began,
        shield=None if result.shield is None else result.shield.kind,
        notes=_notes(result),
        command=tuple(command),
        method=(*stretches(result.messages), *more.get("method", ())),
    )


def _host() -> Mapping[str, Any]:
    """What is true of this machine, outside the scratch run."""
    found: Any = facts.to_json(facts.collect(), [])["host"]
    return found  # type: ignore[no-any-return]


def _hold(command: Sequence[str], folder: Path, name: str, parts: Parts, seconds: float) -> Result:
    return run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument=as_argument(folder, name, parts),
            limits=Limits(seconds=max(_LEAST_SECONDS, seconds)),
            guards=Guards(),
            writable=(folder,),
        )
    )


def _drain_with_more(
    command: Sequence[str],
    folder: Path,
    name: str,
    found: Evidence,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """What the loader gives with twice the workers, where that can still decide something."""
    if not found.workers or found.lost < ALARM or found.loader is None:
        return {}
    if seconds < _LEAST_SECONDS:
        return {"missing": {"workers": "the budget was used up before a drain with more workers"}}
    workers = 2 * found.workers
    tell(f"draining the loader with {workers} workers in place of {found.workers}")
    parts = Parts(**{**vars(_DRAIN_ONLY), "workers": workers})
    result = _hold(command, folder, f"{name}-workers{workers}", parts, seconds)
    held = Stretch(
        name=f"drain with {workers} workers", seconds=result.seconds, note="a scratch run of its own"
    )
    for message in result.messages:
        if message.kind == "drain" and message.body["batches"] >= 4:
            each = message.body["seconds"] / message.body["batches"]
            return {"loader_with": (workers, each * found.batches), "method": (held,)}
    why = f"with {workers} workers: {result.outcome}, {result.reason}"
    return {"missing": {"workers": why}, "method": (held,)}


def _record(folder: Path, result: Result, command: Sequence[str]) -> Record:
    if not (folder / "run.json").exists():
        raise DiagnosisFailed(_why_nothing(result, command))
    return Record.open(folder)


def _why_nothing(result: Result, command: Sequence[str]) -> str:
    """Why there is no step to speak of."""
    said = [message.body.get("text", "") for message in result.messages if message.kind == "error"]
    said = said or result.stderr_tail.strip().splitlines()
    advice = "run it as it stands first; the doctor needs a loop that trains"
    if result.outcome == "timed-out":
        advice = "give it longer with --budget SECONDS"
    return (
        f"{' '.join(command)} made no step that could be observed ({result.outcome}: {result.reason})"
        + (f"; it said: {said[-1]}" if said else "")
        + f". What to do: {advice}"
    )


def _notes(result: Result) -> tuple[str, ...]:
    notes = []
    if not any(message.kind == "finished" for message in result.messages):
        notes.append(f"the script ended before the experiments did ({result.outcome}: {result.reason})")
    if result.shield is not None and result.shield.kind != "full":
        notes.append(f"the write shield is partial: {result.shield.reason}")
    notes += [
        message.body["why"]
        for message in result.messages
        if message.kind == "finished" and message.body.get("why")
    ]
    return tuple(notes)
