"""What the search for a micro-batch found, as a value."""

from dataclasses import asdict, dataclass
from typing import Any

from stoker.tune.comparison import Ratio
from stoker.tune.meaning import Meaning
from stoker.tune.micro_trial import MicroTrial


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What was found. `size` is None where nothing fits, or where parts would mean something else.

    `rate` is that of `size`, `whole` that of the script's own batch, None where that does not fit.
    `ratio` is what parts gained over it in runs by turns, with its interval.
    """

    size: int | None
    batch: int
    rate: float | None
    whole: float | None
    reason: str
    trials: tuple[MicroTrial, ...]
    check: Meaning | None = None
    ratio: Ratio | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What trials may have left behind."""
        return tuple(dict.fromkeys(note for one in self.trials for note in one.notes))

    def to_json(self) -> dict[str, Any]:
        """As `stoker tune --micro-batch --json` prints it."""
        check = None if self.check is None else {"kind": self.check.kind, "by": self.check.by}
        ratio = None if self.ratio is None else asdict(self.ratio)
        return {
            "schema": 1,
            "micro_batch": self.size,
            "batch": self.batch,
            "rate": self.rate,
            "whole": self.whole,
            "reason": self.reason,
            "ratio": ratio,
            "check": check,
            "notes": list(self.notes),
            "trials": [one.to_json() for one in self.trials],
        }
