"""The runs of a search, by settings: which of them count beside which, and what their rates say. Pure.

Rates are compared that were measured alike: with the machine left to both, or with others on it in both. What
others do may be done for the run: a store or a mount that the same machine serves works more the faster it is
read. So where all runs with a change were held up, and none without, it is at least as much faster as it
looks; how much, they do not tell.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean, median
from typing import Any

from stoker.tune.comparison import Ratio, Spread, compare, spread_of
from stoker.tune.stretches import Rates
from stoker.tune.trial import Trial

# With runs that are not to be compared anything may be.
_UNKNOWN = Spread(deviation=inf, freedom=1)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trial that was held, and its number in the ledger: which of two was later."""

    number: int
    trial: Trial


@dataclass
class Runs:
    """All of them. `host` is the machine of the last one: rates are compared within it alone."""

    host: str | None = None
    _held: dict[str, list[Run]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(runs) for runs in self._held.values())

    def add(self, settings: Mapping[str, Any], trial: Trial, number: int) -> bool:
        """One more; whether it ran on another machine than the one before."""
        self._held.setdefault(key(settings), []).append(Run(number=number, trial=trial))
        moved = not self._is_here(trial)
        self.host = trial.host or self.host
        return moved

    def of(self, settings: Mapping[str, Any]) -> list[Trial]:
        """On any machine, in the order in which they were asked for."""
        return [run.trial for run in self._held.get(key(settings), [])]

    def last(self, settings: Mapping[str, Any]) -> int:
        """The number of the last one."""
        return self._held[key(settings)][-1].number

    def measured(self, settings: Mapping[str, Any]) -> list[Rates]:
        """Of this machine, those of runs that others held up too."""
        return [run.trial.rates for run in self._here(settings) if run.trial.rates is not None]

    def rates(self, settings: Mapping[str, Any]) -> list[tuple[float, ...]]:
        """Of this machine, those that count by themselves."""
        return [found.each for found in _counting(self.measured(settings))]

    def rate(self, settings: Mapping[str, Any], beside: Mapping[str, Any]) -> float:
        """In the mean over runs, of those that count beside others."""
        busy = self._alike(settings, beside)
        each = self.rates(settings) if busy is None else self._of(settings, busy)
        return fmean(median(one) for one in each)

    def ratio(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Ratio:
        """Of two settings' rates; unbounded above where others held up those of the second alone.

        Unbounded altogether where they held up those of the first alone.
        """
        sorts = self._sorts(before, after)
        if sorts is None:
            return compare(self.rates(before), self.rates(after), _UNKNOWN)
        found = compare(self._of(before, sorts[0]), self._of(after, sorts[1]), self._spread(sorts))
        return found if sorts[0] == sorts[1] else replace(found, high=inf)

    def are_alike(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Whether there are runs of both on a machine left to them, or of both on one that others used."""
        return self._alike(before, after) is not None

    def are_quiet(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Whether those that are compared ran on a machine left to them."""
        return self._alike(before, after) is False

    def is_beside(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Whether a run of the one came after one of the other, both with a rate that counts."""
        sorts = self._sorts(before, after)
        if sorts is None:
            return False
        one, other = (
            [run.number for run in self._here(settings) if _is_of(run.trial.rates, busy)]
            for settings, busy in zip((before, after), sorts, strict=True)
        )
        return max(one) > min(other)

    def proofs(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
        """How many runs of the other count beside the one."""
        sorts = self._sorts(before, after)
        return 0 if sorts is None else len(self._of(after, sorts[1]))

    def _sorts(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[bool, bool] | None:
        """Whether others held up the runs of the one, and those of the other, that are compared.

        Both alike where that can be; else the second's alone, which are no faster for it. None where they
        held up those of the first alone.
        """
        busy = self._alike(before, after)
        if busy is not None:
            return busy, busy
        return (False, True) if self._of(before, False) and self._of(after, True) else None

    def _alike(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool | None:
        """Whether runs are compared that others held up: where more of both are of that sort.

        None where one has runs of the one sort alone, and the other of the other.
        """
        quiet, held_up = (
            min(len(self._of(before, busy)), len(self._of(after, busy))) for busy in (False, True)
        )
        return None if not quiet and not held_up else held_up > quiet

    def _of(self, settings: Mapping[str, Any], busy: bool) -> list[tuple[float, ...]]:
        return [found.each for found in self.measured(settings) if found.disturbed == busy]

    def _here(self, settings: Mapping[str, Any]) -> list[Run]:
        return [run for run in self._held.get(key(settings), []) if self._is_here(run.trial)]

    def _is_here(self, trial: Trial) -> bool:
        """Whether it ran on the machine of the last one; where that is not known it did."""
        return None in (self.host, trial.host) or trial.host == self.host

    def _spread(self, sorts: Collection[bool]) -> Spread:
        """How much runs of these sorts differ is learnt from all machines, each by itself."""
        known: dict[str, list[tuple[float, ...]]] = {}
        for name, runs in self._held.items():
            for run in runs:
                found = run.trial.rates
                if found is not None and found.disturbed in sorts:
                    alike = f"{name} on {run.trial.host}, held up {found.disturbed}"
                    known.setdefault(alike, []).append(found.each)
        return spread_of(known)


def key(settings: Mapping[str, Any]) -> str:
    """Settings as words; the script as it is has none."""
    return ", ".join(f"{name} = {value!r}" for name, value in sorted(settings.items()))


def _is_of(found: Rates | None, busy: bool) -> bool:
    return found is not None and found.disturbed == busy


def _counting(known: Sequence[Rates]) -> Sequence[Rates]:
    """Of runs in which others left the machine alone; all where they did so in none."""
    return [found for found in known if not found.disturbed] or known
