"""Cures tried: what the doctor predicts for a change beside what the script then does.

Every change of a plan that has a predicted rate is applied by itself. What `stoker run --with` can set is put
over the script's own settings. What only the script's author can do is tried by the case's neutral form, the
same script as somebody wrote it without the cause, where that is what the change would make of it. Runs of
the script as it is stand between them. Each case leaves a result file. A case that was just shown to the
doctor in a round is not shown again: its plan is that of the round.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from stoker import changes
from stoker.bench.result import write_text
from stoker.doctor.calibration import Score, keep
from stoker.doctor.foreign import FEW
from stoker.errors import BenchFailed
from stoker.ward.case import NO_ALARM, Case
from stoker.ward.catalogue import Prepared, injectable, prepared
from stoker.ward.rounds import BUDGET

_PATIENCE = 150.0
# Seconds that a run is measured for, and how often each is made, in turns.
_SECONDS, _TURNS = 4.0, 2
# How often a diagnosis is asked for again that was made while other processes used the machine.
_AGAIN = 2
_DISTURBED = "other processes used the machine: to be tried again"
# What a plan tells a script's author to write, and a setting does as well.
_AS_A_SETTING = {"feed": "ram", "worker_affinity": "all"}
# What a neutral form is: the others of a cause are made otherwise (saving beside the loop, say, for `rarer`).
_AS_THE_NEUTRAL_FORM = frozenset(
    {"stage", "rechunk", "loader", "collate", "bucket", "rarer", "detach", "debug_off", "dtype"}
    | {"open_once", "batch_read", "batch_index"}
)
_NO_WAY = "neither a setting nor a neutral form of the case is this change"
# A batch of another size makes other steps.
_OTHER_STEPS = frozenset({"batch_size"})
# How it is told that a change met nothing that it could alter.
_NOT_APPLIED = ("left alone", "had no effect")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One cure: the rate that was predicted, and the one that was measured, in steps a second.

    `way` is `setting` or `script`. `before` is the rate that the doctor saw, `spread` how much that varied,
    `foreign` the cores that other processes may have taken from it; `again` the script as it is, measured in
    turns with the cure.
    """

    case: str
    said: str | None = None
    change: str | None = None
    value: Any = None
    way: str | None = None
    before: float | None = None
    again: float | None = None
    spread: float | None = None
    foreign: float | None = None
    low: float | None = None
    predicted: float | None = None
    high: float | None = None
    measured: float | None = None
    rates: tuple[float, ...] = ()
    limit: str | None = None
    # Why nothing was tried or measured.
    reason: str | None = None

    @property
    def error(self) -> float | None:
        """How far off the prediction was, as a share of what was measured."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        """The result as its file holds it."""
        return {**vars(self), "rates": list(self.rates), "error": self.error}


def try_all_cures(
    cases: Iterable[Case],
    folder: Path,
    *,
    version: str,
    tell: Callable[[str], None],
    scores: Path | None = None,
    answer_of: Callable[[Case], Mapping[str, Any] | None] = lambda case: None,
) -> list[Tried]:
    """Try the cures of each case, unless its result for this version is there already.

    What is tried anew is also kept as a score of the doctor's on this machine, in the file `scores`. The
    doctor is asked about cases of which `answer_of` has no answer yet.
    """
    found: list[Tried] = []
    for case in cases:
        path = folder / f"{case.id}.json"
        tried = _kept(path, version)
        if tried is None:
            tried = try_cures(case, told=folder / "told" / f"{case.id}.json", answer=answer_of(case))
            if all(one.reason != _DISTURBED for one in tried):
                held = {"version": version, "tried": [one.to_json() for one in tried]}
                write_text(path, json.dumps(held, indent=1) + "\n")
            for one in tried:
                if scores is not None and (score := score_of(one)) is not None:
                    keep(score, scores, values={score.change: one.value})
        for one in tried:
            tell(line_of(one))
        found += tried
    return found


def try_cures(
    case: Case, *, told: Path | None = None, answer: Mapping[str, Any] | None = None
) -> list[Tried]:
    """Ask the doctor for changes and their rates, apply each by itself, and measure.

    The doctor's whole answer goes to `told`. An `answer` that was had on a busy machine is asked for again.
    """
    reason = _not_to_be_tried(case)
    if reason is not None:
        return [Tried(case=case.id, reason=reason)]
    try:
        with contextlib.ExitStack() as standing:
            ready = standing.enter_context(prepared(case))
            if answer is None or _is_disturbed(answer):
                answer = _ask(ready)
            if told is not None:
                write_text(told, json.dumps(answer) + "\n")
            known = Tried(
                case=case.id,
                said=answer["verdict"]["cause"],
                before=answer["rate"],
                spread=answer["spread"],
                foreign=answer["foreign_cores"],
            )
            if _is_disturbed(answer):
                return [replace(known, reason=_DISTURBED)]
            cures = [_Cure.of(case, known, step) for step in _steps_of(answer)]
            if not cures:
                return [replace(known, reason="the plan has no change with a predicted rate")]
            without = None
            if any(one.tried.way == "script" for one in cures):
                without = standing.enter_context(prepared(case.without_cause()))
            _take_turns(ready, without, cures)
    except BenchFailed as error:
        return [Tried(case=case.id, reason=str(error))]
    return [one.tried for one in cures]


@dataclass
class _Cure:
    """A cure being tried: what is put over which script, and how many of the case's steps one of its is."""

    tried: Tried
    settings: dict[str, Any]
    steps: float = 1.0

    @classmethod
    def of(cls, case: Case, known: Tried, step: Mapping[str, Any]) -> "_Cure":
        change, value, rate = step["change"], step["value"], step["predicted"]
        known = replace(
            known,
            change=change,
            value=_AS_A_SETTING.get(change) if value is None else value,
            limit=step.get("limit"),
            low=rate["low"],
            predicted=rate["mid"],
            high=rate["high"],
        )
        if change in changes.ALL and known.value is not None and change not in _OTHER_STEPS:
            return cls(tried=replace(known, way="setting"), settings={change: known.value})
        is_neutral = change in _AS_THE_NEUTRAL_FORM and step["cause"] == case.cause
        if case.neutral is not None and is_neutral:
            return cls(tried=replace(known, way="script"), settings={}, steps=case.neutral.steps)
        return cls(tried=replace(known, reason=_NO_WAY), settings={})

    def measure(self, where: Prepared) -> None:
        """Once more; what cannot be had is told, and not asked for again."""
        found = _measure(where, self.settings)
        if isinstance(found, str):
            self.tried = replace(self.tried, reason=found, measured=None, rates=())
            return
        if not found:
            return
        rates = (*self.tried.rates, *(rate * self.steps for rate in found))
        self.tried = replace(self.tried, rates=rates, measured=median(rates))


def _take_turns(ready: Prepared, without: Prepared | None, cures: Sequence[_Cure]) -> None:
    """The script as it is, then with each cure, and so on."""
    as_it_is: list[float] = []
    for _ in range(_TURNS):
        left = [one for one in cures if one.tried.reason is None]
        if not left:
            return
        found = _measure(ready, {})
        as_it_is += [] if isinstance(found, str) else found
        for one in left:
            one.measure(without if one.tried.way == "script" and without is not None else ready)
    for one in cures:
        reason = _DISTURBED if one.tried.reason is None and not one.tried.rates else one.tried.reason
        one.tried = replace(one.tried, again=median(as_it_is) if as_it_is else None, reason=reason)


def score_of(tried: Tried) -> Score | None:
    """The prediction with its interval beside what was measured; None where one of them is not there."""
    if tried.change is None or tried.predicted is None or tried.measured is None:
        return None
    return Score(
        change=tried.change,
        low=tried.predicted if tried.low is None else tried.low,
        mid=tried.predicted,
        high=tried.predicted if tried.high is None else tried.high,
        measured=tried.measured,
    )


def _not_to_be_tried(case: Case) -> str | None:
    reason = injectable(case)
    if reason is not None:
        return reason
    if case.cause in NO_ALARM:
        return "there is nothing to cure"
    if case.ranks > 1:
        return "a change is applied to one process"
    return None if case.effect == "time" else f"its cause costs no time: {case.effect}"


def _steps_of(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every change of the plan whose rate is predicted, once."""
    steps: dict[str, Mapping[str, Any]] = {}
    for option in (told["plan"] or {}).get("options", []):
        for step in option["changes"]:
            if step["predicted"] is not None:
                steps.setdefault(step["change"], step)
    return list(steps.values())


def _ask(ready: Prepared) -> Mapping[str, Any]:
    """What the doctor says of a case, on a machine left to it if that can be had."""
    for _ in range(_AGAIN):
        told = _run(ready, "stoker", "doctor", "--json", "--no-report", "--budget", str(BUDGET))
        if not _is_disturbed(told):
            break
    return told


def _is_disturbed(told: Mapping[str, Any]) -> bool:
    """Whether other processes had more of the machine than a prediction can leave out."""
    return (told["foreign_cores"] or 0.0) > FEW


def _measure(ready: Prepared, settings: Mapping[str, Any]) -> list[float] | str:
    """Steps a second of stretches; none where the machine was not left to it; or why it cannot be had."""
    told = _run(ready, "stoker.ward.trying", json.dumps(dict(settings)), str(_SECONDS))
    if told["outcome"] != "measured":
        return f"it could not be measured ({told['outcome']}: {told['reason']})"
    refused = [str(line) for line in told["told"] if any(words in line for words in _NOT_APPLIED)]
    if refused:
        return refused[0]
    return [] if told["disturbed"] else [rate / told["size"] for rate in told["rates"]]


def _run(ready: Prepared, module: str, *words: str) -> Mapping[str, Any]:
    try:
        done = subprocess.run(
            ready.command("-m", module, *words), env=ready.env, cwd=ready.cwd, capture_output=True, text=True,
            timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BenchFailed(f"{module} was not done within {_PATIENCE:.0f} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise BenchFailed(f"{module} ended with code {done.returncode}: {said[-1]}")
    told: Mapping[str, Any] = json.loads(done.stdout)
    return told


def line_of(tried: Tried) -> str:
    """A result in a line."""
    if tried.error is None:
        what = tried.case if tried.change is None else f"{tried.case}, {tried.change}"
        return f"n/a     {what}: {tried.reason}"
    value = "" if tried.value is None else f"={tried.value}"
    return (
        f"{tried.error:+7.1%} {tried.case}: {tried.change}{value} ({tried.way}), {tried.before:.1f} steps/s, "
        f"predicted {tried.predicted:.1f}, measured {tried.measured:.1f}"
    )


def read_tried(folder: Path, version: str) -> list[Tried]:
    """All results of a version."""
    return [one for path in sorted(folder.glob("*.json")) for one in _kept(path, version) or ()]


def _kept(path: Path, version: str) -> list[Tried] | None:
    if not path.exists():
        return None
    held = json.loads(path.read_text())
    return [_read(one) for one in held["tried"]] if held["version"] == version else None


def _read(held: Mapping[str, Any]) -> Tried:
    told = {name: value for name, value in held.items() if name != "error"}
    return Tried(**{**told, "rates": tuple(told["rates"])})
