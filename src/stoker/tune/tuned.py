"""What came of a search, as values: each change that was tried, and what is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from stoker.changes import ALL, Kind
from stoker.tune.comparison import Ratio
from stoker.tune.meaning import KINDS, Meaning
from stoker.tune.search import Candidate

# kept: faster beyond doubt, and of its kind. slower, or no faster. open: not told within its runs.
# refused: faster, but graver than it says. guarded: ended by a guard, for memory or for standing still.
# broken: it failed by itself. Either ends a change, also where an earlier run of it had a rate.
Outcome = Literal["kept", "not faster", "open", "refused", "guarded", "broken"]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate and what came of it. `ratio`: to what was kept before it; `total`: to the script itself.

    `settings` are all that were in place: what was kept before, and the candidate. `counts` as a measurement
    of what was predicted: the change was in effect, on a machine left to it.
    """

    candidate: Candidate
    settings: Mapping[str, Any]
    outcome: Outcome
    reason: str
    ratio: Ratio | None
    total: Ratio | None
    rate: float | None
    runs: int
    counts: bool = True
    meaning: Meaning | None = None

    @property
    def kind(self) -> Kind:
        """What it was shown to be, where that is graver than what it says of itself."""
        declared = ALL[self.candidate.change].kind
        shown = None if self.meaning is None else self.meaning.kind
        return declared if shown is None else max(declared, shown, key=KINDS.index)

    def to_json(self) -> dict[str, Any]:
        """The trial as `stoker tune --json` prints it.

        `low` and `high` are about `rate`, in its unit; `ratio` and `predicted` are to the script as it is.
        """
        predicted, total = self.candidate.predicted, self.total
        ratio = ratio_as_json(total)
        whole = None if self.rate is None or total is None else self.rate / total.mid
        low, high = (None if ratio is None else _product(whole, ratio[end]) for end in ("low", "high"))
        return {
            "change": self.candidate.change,
            "value": self.candidate.value,
            "kind": self.kind,
            "outcome": self.outcome,
            "reason": self.reason,
            "rate": self.rate,
            "low": low,
            "high": high,
            "ratio": ratio,
            "runs": self.runs,
            "predicted": None if predicted is None else predicted.to_json(),
            "check": None if self.meaning is None else {"kind": self.meaning.kind, "by": self.meaning.by},
        }


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def ratio_as_json(ratio: Ratio | None) -> dict[str, float | None] | None:
    """By name; ends that are not known are None."""
    if ratio is None:
        return None
    return {"low": ratio.low or None, "mid": ratio.mid, "high": ratio.high if isfinite(ratio.high) else None}


@dataclass(frozen=True, kw_only=True)
class LastPair:
    """Whether the script as it is and what is kept were run once more at the end; why not, where not.

    Changes are held beside what was kept before them: of the script as it is, all runs may be of the start.
    """

    held: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search found: the settings to keep, how much faster they are, and all that was tried.

    `last_pair` is None where nothing is kept.
    """

    settings: Mapping[str, Any]
    baseline: float
    best: float
    unit: str
    ratio: Ratio | None
    tried: tuple[Tried, ...]
    not_tried: tuple[str, ...]
    stopped: str
    runs: int
    last_pair: LastPair | None = None
