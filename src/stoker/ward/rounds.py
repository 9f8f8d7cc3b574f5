"""The ward's rounds: every case that this machine can run is shown to the doctor, who is not told its cause.

Each case leaves a result file of its own, so that rounds can be broken off and gone on with; a table joins
those of one version.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.ward.case import NO_ALARM, Case
from stoker.ward.catalogue import injectable, prepared

# Seconds that a verdict may take, and that the whole of a case may on top of it.
BUDGET = 30.0
_PATIENCE = 150.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the doctor said of a case."""

    case: str
    truth: str
    also: tuple[str, ...]
    said: str | None
    said_also: tuple[str, ...]
    seconds: float | None
    # Why there is no verdict: not injectable here, or what went wrong.
    reason: str | None = None

    @property
    def right(self) -> bool | None:
        """Whether the cause was named first; None where the case could not be run here."""
        if self.said is None:
            return None if self.seconds is None else False
        if self.truth in NO_ALARM:
            return self.said in NO_ALARM
        return self.said == self.truth

    def to_json(self) -> dict[str, Any]:
        """The result as its file holds it."""
        return {**vars(self), "also": list(self.also), "said_also": list(self.said_also), "right": self.right}


def make_rounds(
    cases: Iterable[Case], folder: Path, *, version: str, renamed: bool, tell: Callable[[str], None]
) -> list[Seen]:
    """Show each case to the doctor, unless its result for this version is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    all_seen = []
    for case in cases:
        path = folder / f"{case.id}.json"
        seen = _kept(path, version)
        if seen is None:
            seen = show(case, renamed=renamed)
            path.write_text(json.dumps({"version": version, **seen.to_json()}, indent=1) + "\n")
        tell(line_of(seen))
        all_seen.append(seen)
    return all_seen


def show(case: Case, *, renamed: bool = False) -> Seen:
    """Run the doctor on a case."""
    reason = injectable(case)
    if reason is not None:
        return _unseen(case, None, reason)
    began = time.monotonic()
    with prepared(case, renamed=renamed) as ready:
        command = ready.command("-m", "stoker", "doctor", "--json", "--budget", str(BUDGET))
        try:
            done = subprocess.run(
                command, env=ready.env, cwd=ready.cwd, capture_output=True, text=True, timeout=_PATIENCE,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _unseen(case, time.monotonic() - began, f"no verdict within {_PATIENCE:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return _unseen(case, time.monotonic() - began, f"exit code {done.returncode}: {last}")
    told = json.loads(done.stdout)
    return Seen(
        case=case.id,
        truth=case.cause,
        also=case.also,
        said=told["verdict"]["cause"],
        said_also=tuple(one["cause"] for one in told["verdict"]["also"]),
        seconds=told["seconds"],
    )


def line_of(seen: Seen) -> str:
    """A result in a line."""
    if seen.right is None:
        return f"n/a    {seen.case}: {seen.reason}"
    also = f" (also {', '.join(seen.said_also)})" if seen.said_also else ""
    said = seen.said or seen.reason
    return f"{'right' if seen.right else 'WRONG'}  {seen.case}: {seen.truth}, said {said}{also}"


def _unseen(case: Case, seconds: float | None, reason: str) -> Seen:
    return Seen(
        case=case.id,
        truth=case.cause,
        also=case.also,
        said=None,
        said_also=(),
        seconds=seconds,
        reason=reason,
    )


def _kept(path: Path, version: str) -> Seen | None:
    if not path.exists():
        return None
    held = json.loads(path.read_text())
    if held.pop("version") != version:
        return None
    held.pop("right")
    return Seen(**{**held, "also": tuple(held["also"]), "said_also": tuple(held["said_also"])})
