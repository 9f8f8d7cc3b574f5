"""Cures tried: what the doctor predicts for a change beside what the script then does.

A cure that is a setting is put over the script's own. One that is a change to the script is tried by the
case's neutral form: the same script as somebody wrote it without the cause. Each case leaves a result file.
"""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stoker import changes
from stoker.doctor.calibration import Score, keep
from stoker.doctor.foreign import FEW
from stoker.errors import BenchFailed
from stoker.ward.case import NO_ALARM, Case
from stoker.ward.catalogue import Prepared, injectable, prepared
from stoker.ward.rounds import BUDGET

_PATIENCE = 150.0
# Seconds that a change is measured for.
_SECONDS = 8.0
# How often what was measured while other processes used the machine is measured again.
_AGAIN = 2
_DISTURBED = "other processes used the machine: to be tried again"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One cure: the rate that was predicted, and the one that was measured, in steps a second.

    `way` is `setting` or `script`. `before` is the rate that the doctor saw, `spread` how much that varied,
    `foreign` the cores that other processes used meanwhile.
    """

    case: str
    said: str | None = None
    change: str | None = None
    value: Any = None
    way: str | None = None
    before: float | None = None
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


def try_cures(
    cases: Iterable[Case],
    folder: Path,
    *,
    version: str,
    tell: Callable[[str], None],
    scores: Path | None = None,
) -> list[Tried]:
    """Try the cure of each case, unless its result for this version is there already.

    What is tried anew is also kept as a score of the doctor's on this machine, in the file `scores`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for case in cases:
        path = folder / f"{case.id}.json"
        tried = _kept(path, version)
        if tried is None:
            tried = try_cure(case)
            if tried.reason != _DISTURBED:
                path.write_text(json.dumps({"version": version, **tried.to_json()}, indent=1) + "\n")
            if scores is not None and (score := score_of(tried)) is not None:
                keep(score, scores, values={score.change: tried.value})
        tell(line_of(tried))
        found.append(tried)
    return found


def try_cure(case: Case) -> Tried:
    """Ask the doctor for a cure and its rate, apply it, and measure."""
    reason = _not_to_be_tried(case)
    if reason is not None:
        return Tried(case=case.id, reason=reason)
    try:
        with prepared(case) as ready:
            told = _ask(ready)
            if (told["foreign_cores"] or 0.0) > FEW:
                return Tried(case=case.id, foreign=told["foreign_cores"], reason=_DISTURBED)
            step = _step_of(told)
            known = Tried(
                case=case.id,
                said=told["verdict"]["cause"],
                before=told["rate"],
                spread=told["spread"],
                foreign=told["foreign_cores"],
                reason=None if step is not None else "the plan has no change with a predicted rate",
            )
            if step is None:
                return known
            is_setting = _is_setting(step)
            if is_setting:
                rates = _measure(ready, {step["change"]: step["value"]})
        if not is_setting:
            if case.neutral is None or known.said != case.cause:
                return _with(known, step, reason="no neutral form of this cause to try the cure by")
            with prepared(case.without_cause()) as ready:
                rates = _measure(ready, {})
            rates = [rate * case.neutral.steps for rate in rates]
    except BenchFailed as error:
        return Tried(case=case.id, reason=str(error))
    if not rates:
        return _with(known, step, reason=_DISTURBED)
    way = "setting" if is_setting else "script"
    return _with(known, step, way=way, rates=tuple(rates), measured=median(rates))


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


def _step_of(told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first change whose rate is predicted: of the first cause, and a setting before a rewriting."""
    steps = [
        step
        for option in (told["plan"] or {}).get("options", [])
        for step in option["changes"]
        if step["predicted"] is not None and step["cause"] == told["verdict"]["cause"]
    ]
    settings = [step for step in steps if _is_setting(step)]
    return next(iter(settings or steps), None)


def _with(known: Tried, step: Mapping[str, Any], **more: Any) -> Tried:
    rate = step["predicted"]
    told = {"change": step["change"], "value": step["value"], "limit": step.get("limit")}
    interval = {"low": rate["low"], "predicted": rate["mid"], "high": rate["high"]}
    return Tried(**{**vars(known), **told, **interval, **more})


def _ask(ready: Prepared) -> Mapping[str, Any]:
    """What the doctor says of a case, on a machine left to it if that can be had."""
    for _ in range(_AGAIN):
        told = _run(ready, "stoker", "doctor", "--json", "--no-report", "--budget", str(BUDGET))
        if (told["foreign_cores"] or 0.0) <= FEW:
            break
    return told


def _measure(ready: Prepared, settings: Mapping[str, Any]) -> list[float]:
    """Steps a second of stretches on a machine left to the script; none where it was not."""
    for _ in range(_AGAIN):
        told = _run(ready, "stoker.ward.trying", json.dumps(dict(settings)), str(_SECONDS))
        if told["outcome"] != "measured":
            raise BenchFailed(f"it could not be measured ({told['outcome']}: {told['reason']})")
        if not told["disturbed"]:
            return [rate / told["size"] for rate in told["rates"]]
    return []


def _is_setting(step: Mapping[str, Any]) -> bool:
    """Whether it can be put over the script; a batch of another size makes other steps."""
    return step["change"] in changes.ALL and step["value"] is not None and step["change"] != "batch_size"


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
        return f"n/a     {tried.case}: {tried.reason}"
    value = "" if tried.value is None else f"={tried.value}"
    return (
        f"{tried.error:+7.1%} {tried.case}: {tried.change}{value} ({tried.way}), {tried.before:.1f} steps/s, "
        f"predicted {tried.predicted:.1f}, measured {tried.measured:.1f}"
    )


def read_tried(folder: Path, version: str) -> list[Tried]:
    """All results of a version."""
    found = [_kept(path, version) for path in sorted(folder.glob("*.json"))]
    return [one for one in found if one is not None]


def _kept(path: Path, version: str) -> Tried | None:
    if not path.exists():
        return None
    held = json.loads(path.read_text())
    if held.pop("version") != version:
        return None
    held.pop("error")
    return Tried(**{**held, "rates": tuple(held["rates"])})
