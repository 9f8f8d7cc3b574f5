"""A diagnosis of a script: scratch runs of the user's own loop, and what they showed."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from stoker import facts
from stoker.doctor import device
from stoker.doctor.budget import Budget, draw_budget
from stoker.doctor.calibration import NAME as CALIBRATION
from stoker.doctor.calibration import errors_of, read_scores
from stoker.doctor.ending import read_ending
from stoker.doctor.evidence import Evidence, read
from stoker.doctor.experiments.alone import look
from stoker.doctor.experiments.memory import without_advice
from stoker.doctor.fresh_sizes import Wish, run_fresh_sizes
from stoker.doctor.method import Stretch, stretches
from stoker.doctor.one_thread import try_one_thread, variables
from stoker.doctor.other_workers import LEAST_SECONDS, try_workers
from stoker.doctor.parts import Parts, as_argument
from stoker.doctor.plan import Plan, draw_up
from stoker.doctor.rank_evidence import read_ranks
from stoker.doctor.rank_trial import board_path
from stoker.doctor.smaller import run_smaller
from stoker.doctor.spawned import run_of_ranks
from stoker.doctor.verdict import Verdict, reach
from stoker.errors import DiagnosisFailed
from stoker.facts.secrets import hide_password
from stoker.scratch import Guards, Limits, Message, Result, run
from stoker.scratch import Plan as ScratchPlan
from stoker.watch import Record
from stoker.watch.record import new_name
from stoker.watch.script import find_script

_HOOK = "stoker.doctor.trial:prepare"
# Of bytes on a disk: a record of some steps takes less.
_LEAST_FREE = 1 << 16
_OF_DEVICE = (
    "trace", "syncs", "copied", "variants", "resized", "others", "allocator", "clocks", "overflow",
)  # fmt: skip
# Of a memory group's limit, one part in so many is kept free.
_GROUP_HEADROOM = 32
# Of a budget, for the first run; the rest is for a drain with other workers.
_FIRST = 0.7
# Of a small one, for observing: of 20 s the 6 of a large one left none for the loader.
_OBSERVED = 0.15
# More is asked in it where there is a GPU.
_FIRST_WITH_GPU = 0.85


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A verdict, what it rests on, and what to do.

    `command` is what was diagnosed; empty for a record alone. `offline`: it was cut off the network; None
    where nothing was run.
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
    offline: bool | None = None

    @property
    def rates(self) -> dict[str, float | None]:
        """Steps a second: as a progress bar shows it, by the median step; and over wall time, stalls too."""
        run = self.evidence
        return {"burst": None if not run.typical else 1 / run.typical, "sustained": 1 / run.step or None}

    def planned(self, home: Path, *, steps: int | None = None) -> "Diagnosis":
        """With its plan and its budget, by the scores kept in a `.stoker`; for a run of so many steps."""
        run, errors = self.evidence, errors_of(read_scores(home / CALIBRATION))
        budget = draw_budget(run) if self.budget is None else self.budget
        plan = draw_up(self.verdict, run, budget, errors=errors, steps=steps)
        return replace(self, plan=plan, budget=budget)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as `stoker doctor --json` prints it."""
        run = self.evidence
        return {
            "schema": 1,
            **self.verdict.to_json(),
            "rates": self.rates,
            "spread": run.spread,
            "foreign_cores": run.foreign,
            "plan": None if self.plan is None else self.plan.to_json(),
            "budget": None if self.budget is None else self.budget.to_json(),
            "step_seconds": run.step if isfinite(run.step) else None,
            "shares": dict(run.shares),
            "loader": None if run.drawn is None else vars(run.drawn),
            "making": dict(run.making),
            "device": {name: device.to_json(getattr(run, name)) for name in _OF_DEVICE},
            "ranks": None if run.together is None else run.together.to_json(),
            "reread": None if run.reread is None else asdict(run.reread),
            "stub": None if run.stub is None else asdict(run.stub),
            "not_measured": dict(run.missing),
            "overhead": dict(run.overhead),
            "record": str(self.record),
            "seconds": self.seconds,
            "shield": self.shield,
            "offline": self.offline,
            "notes": list(self.notes),
            "method": [{"name": one.name, "seconds": one.seconds, "note": one.note} for one in self.method],
        }


def examine_record(record: Record, held: Sequence[Message] = ()) -> Diagnosis:
    """What a record alone tells: less than experiments do. `held` is what was tried beside it."""
    record.require_ranks()
    began = time.monotonic()
    host = ((record.about.get("facts") or {}) if isinstance(record.about, dict) else {}).get("host") or {}
    tried = {message.kind for message in held}
    missing = {name: "a record alone" for name in ("replay", "drain") if name not in tried}
    evidence = read_ranks(record, held, host, {"missing": missing})
    if evidence is None:
        raise DiagnosisFailed(f"{record.folder} holds fewer than 2 steps: record more of the run")
    return Diagnosis(
        verdict=reach(evidence),
        evidence=evidence,
        record=record.folder,
        seconds=time.monotonic() - began,
        shield=None,
        method=tuple(Stretch(name=message.kind, seconds=message.at) for message in held),
    ).planned(record.folder.parent.parent)


def examine(
    command: Sequence[str],
    *,
    folder: Path,
    budget: float,
    tell: Callable[[str], None],
    wish: Wish | None = None,
    offline: bool = False,
) -> Diagnosis:
    """Run the script aside, hold the experiments, and reach a verdict.

    With a `wish`, sizes are run in processes of their own as far as predictions of the card's memory need it.
    """
    began = time.monotonic()
    _require_script(command)
    host = _host()
    name = new_name()
    folder.mkdir(parents=True, exist_ok=True)
    cards = look()
    tell("observing the loop, then with held batches, then its loader alone")
    first = _FIRST_WITH_GPU if cards else _FIRST
    parts = Parts(device=True, observe_seconds=min(Parts.observe_seconds, budget * _OBSERVED))
    hold = partial(_hold, command, folder, offline=offline)
    result = hold(name, parts, max(LEAST_SECONDS, budget * first))
    world = next((one.body["world"] for one in result.messages if one.kind == "ranks"), 1)
    if world > 1:
        own = folder / run_of_ranks(name)
        together, record = _read_ranks(command, result, own, world, host, {})
        return replace(_of_ranks(command, result, together, record, began), offline=offline)
    record = _record(folder / name, result, command)
    known: dict[str, Any] = {
        "ending": read_ending(result, _kills_since(host)),
        "cards": cards,
        "missing": _not_held(result),
    }
    evidence = read(record, result.messages, host, known)
    if evidence is None:
        raise DiagnosisFailed(_why_nothing(result, command, record, folder=folder))
    more: dict[str, Any] = {}
    for attempt in (try_one_thread, try_workers):
        more = _joined(more, attempt(hold, folder, name, evidence, _left(began + budget), tell))
    if more:
        evidence = read(record, result.messages, host, _joined(known, more)) or evidence
    left = partial(_left, began + budget)
    evidence = run_smaller(hold, name, evidence, left, tell)
    sizes: tuple[Stretch, ...] = ()
    if wish is not None:
        each = next((one.at for one in result.messages if one.kind == "began"), LEAST_SECONDS)
        evidence, sizes = run_fresh_sizes(hold, name, evidence, left, tell, wish=wish, each=each)
    return Diagnosis(
        verdict=reach(evidence),
        evidence=evidence,
        record=record.folder,
        seconds=time.monotonic() - began,
        shield=None if result.shield is None else result.shield.kind,
        notes=_notes(result),
        command=tuple(command),
        method=(*stretches(result.messages), *more.get("method", ()), *sizes),
        offline=offline,
    ).planned(folder.parent)


def examine_ranks(
    command: Sequence[str],
    *,
    ranks: int,
    folder: Path,
    budget: float,
    tell: Callable[[str], None],
    offline: bool = False,
) -> Diagnosis:
    """The same for a script with several ranks: the experiments are held on all of them at once."""
    began = time.monotonic()
    _require_script(command)
    host = _host()
    name = new_name()
    folder.mkdir(parents=True, exist_ok=True)
    tell(f"observing {ranks} ranks, then with held batches, then their loaders alone")
    hold = partial(_hold, command, folder, ranks=ranks, offline=offline)
    parts = Parts(observe_seconds=min(Parts.observe_seconds, budget * _OBSERVED))
    result = hold(name, parts, max(LEAST_SECONDS, budget * _FIRST))
    evidence, record = _read_ranks(command, result, folder / name, ranks, host, {})
    more = try_workers(hold, folder, name, evidence, budget - (time.monotonic() - began), tell)
    if more:
        evidence, _ = _read_ranks(command, result, folder / name, ranks, host, more)
    found = _of_ranks(command, result, evidence, record, began, more.get("method", ()))
    return replace(found, offline=offline)


def _require_script(command: Sequence[str]) -> None:
    """That it is there, before the machine is looked at; a module is found in the scratch run alone.

    To find one runs what its package does when it is imported.
    """
    if command[0] != "-m":
        find_script(command[0], list(command[1:]))


def _read_ranks(
    command: Sequence[str],
    result: Result,
    folder: Path,
    ranks: int,
    host: Mapping[str, Any],
    more: Mapping[str, Any],
) -> tuple[Evidence, Record]:
    record = _record(folder, result, command)
    evidence = None
    if len(record.ranks) == ranks and result.outcome not in ("crashed", "failed"):
        evidence = read_ranks(record, result.messages, host, more)
    if evidence is None:
        raise DiagnosisFailed(_why_nothing(result, command, folder=folder.parent))
    return evidence, record


def _of_ranks(
    command: Sequence[str],
    result: Result,
    evidence: Evidence,
    record: Record,
    began: float,
    method: tuple[Stretch, ...] = (),
) -> Diagnosis:
    return Diagnosis(
        verdict=reach(evidence),
        evidence=evidence,
        record=record.folder,
        seconds=time.monotonic() - began,
        shield=None if result.shield is None else result.shield.kind,
        notes=_notes(result),
        command=tuple(command),
        method=(*stretches([message for message in result.messages if message.rank == 0]), *method),
    ).planned(record.folder.parent.parent)


def _left(until: float) -> float:
    return until - time.monotonic()


def _headroom() -> int:
    """Memory that a scratch run leaves free.

    Less where a group's limit is what it would meet: there the kernel ends the script, which is first in its
    line, and nobody else; half a GiB kept free would stop what lives in a small container.
    """
    here, usual = facts.host.read(), Guards().ram_headroom_bytes
    limit, available = here.memory_limit_bytes, here.ram_available_bytes
    if limit is None or (available is not None and available <= limit):
        return usual
    return min(usual, limit // _GROUP_HEADROOM)


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What two further runs found: what is missing, and how they were held, of both."""
    return {
        **one,
        **other,
        "missing": {**one.get("missing", {}), **other.get("missing", {})},
        "method": (*one.get("method", ()), *other.get("method", ())),
    }


def _host() -> Mapping[str, Any]:
    """What is true of this machine, outside the scratch run."""
    found: Any = facts.to_json(facts.collect(), [])["host"]
    return found  # type: ignore[no-any-return]


def _not_held(result: Result) -> dict[str, str]:
    """Why the loop was not replayed or drained, where the run itself has said so."""
    told = {message.kind: message.body for message in result.messages}
    why = told.get("finished", {}).get("why")
    return {name: str(why) for name in ("replay", "drain") if name not in told} if why else {}


def _kills_since(host: Mapping[str, Any]) -> int | None:
    """Processes of this memory group that the kernel has killed since those facts; None where not counted."""
    before, now = host.get("oom_kills"), facts.host.read().oom_kills
    return None if before is None or now is None else now - before


def _hold(
    command: Sequence[str],
    folder: Path,
    name: str,
    parts: Parts,
    seconds: float,
    *,
    ranks: int = 1,
    offline: bool = False,
) -> Result:
    own = tuple(folder / run for run in (name, run_of_ranks(name)))
    plan = ScratchPlan(
        command=tuple(command),
        hook=_HOOK,
        argument={**as_argument(folder, name, parts), "ranks": ranks},
        limits=Limits(seconds=seconds),
        guards=Guards(ram_headroom_bytes=_headroom()),
        writable=own,  # new ones: what else is beside them may be the user's
        ranks=ranks,
        env=variables(parts.threads),
        offline=offline,
    )
    try:
        return _shown(run(plan))
    finally:
        for place in own:
            board_path(folder, place.name).unlink(missing_ok=True)
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()


def _shown(result: Result) -> Result:
    """What the script said of itself, its errors above all, without the passwords in it."""
    return replace(
        result,
        reason=hide_password(result.reason),
        stderr_tail=hide_password(result.stderr_tail),
        messages=tuple(replace(one, body=_shown_texts(one.body)) for one in result.messages),
    )


def _shown_texts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Texts of a message, and those by name in one of its fields; lists hold figures."""
    return {
        name: hide_password(told)
        if isinstance(told, str)
        else _shown_texts(told)
        if isinstance(told, dict)
        else told
        for name, told in body.items()
    }


def _record(folder: Path, result: Result, command: Sequence[str]) -> Record:
    if not (folder / "run.json").exists():
        raise DiagnosisFailed(_why_nothing(result, command, folder=folder.parent))
    return Record.open(folder)


def _why_nothing(
    result: Result, command: Sequence[str], record: Record | None = None, *, folder: Path
) -> str:
    """Why there is no step to speak of; `folder` is where the record was to be."""
    free = shutil.disk_usage(folder).free
    if result.steps and free < _LEAST_FREE:
        return (
            f"{' '.join(command)} made {result.steps} steps, and none could be recorded: {free:,} bytes are "
            f"free on the disk of {folder}. What to do: make room there, or name a folder on another disk by "
            "$STOKER_RUNS"
        )
    said = [message.body.get("text", "") for message in result.messages if message.kind == "error"]
    said = said or result.stderr_tail.strip().splitlines()
    if result.reason.startswith("rank "):
        said = []  # it is told in the reason; the other ranks only say that it is gone
    advice = "run it as it stands first; the doctor needs a loop that trains"
    if result.outcome == "timed-out":
        advice = "give it longer with --budget SECONDS"
        if record is None or not any(True for rank in record.ranks.values() for _ in rank.steps()):
            advice = (
                "no optimizer step was seen. One is a call of step() of a torch optimizer in the script's "
                f"own process; if it comes later than that, {advice}"
            )
    return (
        f"{' '.join(command)} made no step that could be observed ({result.outcome}: {result.reason})"
        + (f"; it said: {said[-1]}" if said else "")
        + f". What to do: {advice}"
    )


def _notes(result: Result) -> tuple[str, ...]:
    notes = []
    if not any(message.kind == "finished" for message in result.messages):
        why = result.reason.strip().splitlines() or [""]
        told = why[0] if len(why) == 1 else f"{why[0]} … {why[-1] or why[-2]}"  # not the trace between
        told = without_advice(told)
        notes.append(f"the script ended before the experiments did ({result.outcome}: {told})")
    if result.shield is not None and result.shield.kind != "full":
        notes.append(f"the write shield is partial: {result.shield.reason}")
    notes += [
        message.body["why"]
        for message in result.messages
        if message.kind == "finished" and message.body.get("why")
    ]
    return tuple(dict.fromkeys(notes))  # ranks say the same
