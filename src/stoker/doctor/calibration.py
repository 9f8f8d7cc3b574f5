"""How good the speed model's predictions were: every one that is tried is scored, and the score is kept.

`.stoker/calibration.jsonl` has a line for each, only ever appended to, by one write: several processes may
score at once. A line that a full disk or a kill has cut off is left out by readers, and harms none after it.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, log
from pathlib import Path
from statistics import median
from typing import Any

from stoker.doctor.model import Prediction, untried
from stoker.errors import NotPermitted

if sys.platform != "win32":
    import fcntl

NAME = "calibration.jsonl"
# So many scores before their own ninth decile says more than their worst.
_ENOUGH = 9
# The share of predictions whose interval is to hold what was then measured.
_COVERED = 0.9


@dataclass(frozen=True, kw_only=True)
class Score:
    """A prediction beside what was measured, in steps a second. `change` names all that was changed."""

    change: str
    low: float
    mid: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """How far off it was, as a share of what was measured; more than 0: too high."""
        return self.mid / self.measured - 1

    @property
    def covered(self) -> bool:
        """Whether the interval held it."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Some scores together."""

    number: int
    median_error: float
    coverage: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> "Summary | None":
        """None of none."""
        if not scores:
            return None
        return cls(
            number=len(scores),
            median_error=median(abs(score.error) for score in scores),
            coverage=sum(score.covered for score in scores) / len(scores),
        )

    def to_json(self) -> dict[str, float]:
        """All of it, by name."""
        return {"number": self.number, "median_error": self.median_error, "coverage": self.coverage}


def score(prediction: Prediction, measured: float, path: Path) -> Score:
    """Score a prediction by what was measured, and keep the score."""
    rate = prediction.rate
    found = Score(change=prediction.name, low=rate.low, mid=rate.mid, high=rate.high, measured=measured)
    keep(found, path, values={change.change: change.value for change in prediction.changes})
    return found


def keep(found: Score, path: Path, *, values: Mapping[str, Any] | None = None) -> None:
    """Append a score: a whole line, by one write."""
    line = json.dumps({"schema": 1, "t": time.time(), **vars(found), "values": dict(values or {})}) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX)  # amid another's write, its line would look torn
            os.write(file, (("" if _ends_whole(file) else "\n") + line).encode())
        finally:
            os.close(file)
    except OSError as error:
        raise NotPermitted(
            f"the score cannot be kept in {path}: {error.strerror}; run from a folder you may write to"
        ) from error


def _ends_whole(file: int) -> bool:
    """Whether the last line has its end: a new one is not to be joined to a torn one."""
    size = os.lseek(file, 0, os.SEEK_END)
    if not size:
        return True
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) == b"\n"


def read_scores(path: Path) -> list[Score]:
    """All whole scores of a file; none where there is no file."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise NotPermitted(f"{path} may not be read: ask its owner, or read it as that user") from error
    return [found for line in lines if (found := _parsed(line)) is not None]


def _parsed(line: str) -> Score | None:
    try:
        held = json.loads(line)
        rates = {name: float(held[name]) for name in ("low", "mid", "high", "measured")}
        change = str(held["change"])
    except (ValueError, KeyError, TypeError):
        return None
    # A rate that a disk has harmed is none: its logarithm would be none either.
    sound = all(isfinite(rate) and rate > 0 for rate in rates.values())
    return Score(change=change, **rates) if sound else None


def errors_of(scores: Iterable[Score]) -> dict[str, float]:
    """By change, how far predictions may be off nine times in ten.

    The ninth decile of what they were off by (with the one in n + 1 that is still to come); with fewer than 9
    scores their worst, and not less than the width of what was never tried.
    """
    by_change: dict[str, list[float]] = {}
    for one in scores:
        by_change.setdefault(one.change, []).append(abs(log(one.measured / one.mid)))
    return {change: _width(change, offs) for change, offs in by_change.items()}


def _width(change: str, offs: list[float]) -> float:
    if len(offs) < _ENOUGH:
        return max(untried(change), *offs)
    return sorted(offs)[min(len(offs), ceil(_COVERED * (len(offs) + 1))) - 1]


def summarise(scores: Sequence[Score]) -> dict[str, Summary]:
    """All together, as "all", and by change."""
    found = {}
    for change in ("all", *sorted({score.change for score in scores})):
        summary = Summary.of([one for one in scores if change in ("all", one.change)])
        if summary is not None:
            found[change] = summary
    return found
