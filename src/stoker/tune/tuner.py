"""A search held: trials alternated with what is kept so far, until each change is told faster or not."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isinf
from pathlib import Path
from typing import Any

from stoker.changes.parts import lines
from stoker.errors import TrialFailed
from stoker.tune.checking import Checks, TakeProbe
from stoker.tune.comparison import Ratio
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import PROBE_STEPS, Meaning
from stoker.tune.runs import Runs, key
from stoker.tune.search import ENOUGH, Candidate, Search
from stoker.tune.trial import Trial
from stoker.tune.tuned import LastPair, Outcome, Tried, Tuned

# Runs of one change; what is still open then is not beyond doubt, and not kept.
_MOST_RUNS = 4
# How often a change has to run to be kept: one run may be a lucky one, and how much its own runs differ is
# not known from it.
_PROOF_RUNS = 2
# Where there is time for one alone, what it has to be faster by, at the interval's low end: of 23 cured cases
# (benchmarks/cures_cpu_2026-11-18.json) the fastest of three runs alike was up to 1.19 times the middle one.
_BY_ONE_RUN = 1.25
# Of a search, for the last trial to be whole.
_LEAST_SECONDS = 5.0
# What was planned may take so much longer: a budget holds within a few seconds.
_GRACE = 2.0
# What an epoch in which samples are held takes of one in which they are not: 7.5 s of 6.1 at a slow store.
_LONGER = 1.25
# What ending a process takes.
_ENDING = 0.5

Hold = Callable[[Mapping[str, Any], Path, float], Trial]
_GUARDED = ("stopped", "hung", "thrashed")


@dataclass
class Tuner:
    """Holds a search. `ceiling` is how much faster the script would be if it only computed.

    `scored` is given each candidate of which something was run now: a search that is resumed is not to score
    again what it finds in its ledger. One that is resumed on another machine keeps what was decided, and
    compares nothing of the one machine with the other.
    """

    search: Search
    ledger: Ledger
    hold: Hold
    probe: TakeProbe
    deadline: float
    ceiling: float | None
    tell: Callable[[str], None]
    scored: Callable[[Tried], None] = lambda tried: None
    script: str = "the script"
    runs: Runs = field(default_factory=Runs)
    tried: list[Tried] = field(default_factory=list)
    checks: Checks = field(init=False)
    # Whether what is kept may compute faster than the script does: the ceiling is not known any more then.
    _lifted: bool = False

    def __post_init__(self) -> None:
        self.checks = Checks(probe=self.probe, kinds=self.search.kinds)

    def find(self) -> Tuned:
        """Try candidates until none is left, little is left to gain, or time is over."""
        for _ in range(2):  # two, to know how much runs of the same settings differ
            self._run({})
        self._require_rate({})
        stopped, enough = "nothing more is worth trying", ""
        for candidate in self.search.candidates():
            if little := self._enough(candidate):
                self.search.not_tried.append(f"{candidate.name}: {little}")
                self.search.tell(candidate, faster=False)
                enough = little
                continue
            if stop := self._over(candidate):
                stopped, enough = stop, ""
                break
            if not self._is_time_for(candidate, takes := self._takes(candidate) + self._again):
                short = (
                    f"{candidate.name}: its trials would take {takes:.0f} s, with {self._left():.0f} s left"
                )
                self.search.not_tried.append(f"{short}; give more with --budget SECONDS")
                self.search.tell(candidate, faster=False)
                continue
            held = self.ledger.held
            one = self._try(candidate)
            self.tried.append(one)
            if self.ledger.held > held:
                self.scored(one)
            measured = one.total.mid if one.total is not None and one.counts else None
            self.search.tell(candidate, faster=one.outcome == "kept", measured=measured)
            if one.outcome == "kept" and candidate.lifts:
                self._lifted, enough = True, ""
        best = dict(self.search.kept)
        last = self._hold_last(best) if best else None
        return Tuned(
            settings=best,
            baseline=self.runs.rate({}, best),
            best=self.runs.rate(best, {}),
            unit=self._unit(),
            ratio=self.runs.ratio({}, best) if best else None,
            tried=tuple(self.tried),
            not_tried=tuple(dict.fromkeys(self.search.not_tried)),
            stopped=enough or stopped,
            runs=len(self.runs),
            last_pair=last,
        )

    def _hold_last(self, best: Mapping[str, Any]) -> LastPair:
        """The script as it is and what is kept once more, one after the other, where there is time."""
        takes = self._trial_took + self._again
        if (left := self._left()) < max(_LEAST_SECONDS, takes):
            short = f"it would take {takes:.0f} s, with {max(0.0, left):.0f} s left"
            return LastPair(held=False, reason=f"{short}; give more with --budget SECONDS")
        for settings, beside in (({}, best), (best, {})):
            trial = self._run(settings, beside=beside)
            how = "with what is kept" if settings else "as it is"
            if trial.rates is None:
                return LastPair(held=False, reason=f"{how} it had no rate ({trial.outcome}: {trial.reason})")
            if trial.rates.disturbed and not all(one.disturbed for one in self.runs.measured(settings)):
                return LastPair(held=False, reason=f"others used the machine in its run {how}")
        return LastPair(held=True)

    def _try(self, candidate: Candidate) -> Tried:
        """Run it, then what is kept, then it again, until the interval says something.

        What is faster is so beside a run of what is kept that came after one of its own: else it may be the
        machine, which others have left meanwhile.
        """
        before = dict(self.search.kept)
        after = {**before, candidate.change: candidate.value}
        ratio = None
        for _ in range(_MOST_RUNS):
            trial = self._run(after, spare=max(0.0, self._checking(candidate) - _GRACE))
            if trial.rates is None and (trial.outcome != "short" or not self.runs.rates(after)):
                ended: Outcome = "guarded" if trial.outcome in _GUARDED else "broken"
                return self._tried(candidate, ended, f"{trial.outcome}: {trial.reason}", after, None)
            ratio = self.runs.ratio(before, after)
            if alone := _left_alone(trial, candidate.change):
                one = self._tried(candidate, "not faster", alone, after, ratio)
                return replace(one, counts=False)
            if self._is_told(before, after, ratio) or not self._is_time_for(candidate, self._again):
                break
            self._run(before, beside=after)
            if not self.runs.rates(after):  # the search has begun anew on another machine
                ratio = None
                continue
            ratio = self.runs.ratio(before, after)
            if self._is_told(before, after, ratio):
                break
            if not self._is_time_for(candidate, self._takes(candidate)):
                break
        if ratio is None:
            return self._tried(candidate, "open", "it was not run again on this machine", after, None)
        if ratio.says != "faster":
            return self._tried(candidate, ratio.says, self._untold(before, after, ratio), after, ratio)
        if unproved := self._unproved(before, after, ratio):
            return self._tried(candidate, "open", unproved, after, ratio)
        self.tell(f"{candidate.name}: what it means")
        try:
            meaning = self.checks.check(after)
        except TrialFailed as error:  # compiled anew, say, for longer than a probe may take
            meaning = Meaning(kind=None, by=f"not checked: {error}", holds=False)
        self.ledger.keep_check(self.runs.last(after), asdict(meaning))
        if not meaning.holds:
            return self._tried(candidate, "refused", _refusal(candidate, meaning), after, ratio, meaning)
        return self._tried(candidate, "kept", meaning.by, after, ratio, meaning)

    def _is_told(self, before: Mapping[str, Any], after: Mapping[str, Any], ratio: Ratio) -> bool:
        """Whether more runs would tell no more."""
        if ratio.says != "faster":
            return ratio.says == "not faster"
        return self.runs.is_beside(before, after) and self.runs.proofs(before, after) >= _PROOF_RUNS

    def _unproved(self, before: Mapping[str, Any], after: Mapping[str, Any], ratio: Ratio) -> str:
        """Why a change that is faster is not so beyond doubt; empty where it is."""
        more = "give more with --budget SECONDS"
        if not self.runs.is_beside(before, after):
            return f"what is kept was not measured once more beside it: {more}"
        if self.runs.proofs(before, after) < _PROOF_RUNS and ratio.low <= _BY_ONE_RUN:
            return f"one run of it counts, which tells no less than {_BY_ONE_RUN:g} times as fast: {more}"
        return ""

    def _untold(self, before: Mapping[str, Any], after: Mapping[str, Any], ratio: Ratio) -> str:
        """Why nothing can be said of two settings' runs; empty where it can."""
        if not self.runs.are_alike(before, after):
            return (
                "others used the machine in all runs with it and in none without it, or the other way round"
            )
        if isinf(ratio.high):
            return "others used the machine in too many runs: how much runs differ is not known"
        return ""

    def _tried(
        self,
        candidate: Candidate,
        outcome: Outcome,
        reason: str,
        settings: Mapping[str, Any],
        ratio: Ratio | None,
        meaning: Meaning | None = None,
    ) -> Tried:
        measured = self.runs.measured(settings)
        return Tried(
            candidate=candidate,
            settings=dict(settings),
            outcome=outcome,
            reason=reason,
            ratio=ratio,
            total=self.runs.ratio({}, settings) if measured else None,
            rate=self.runs.rate(settings, {}) if measured else None,
            runs=len(self.runs.of(settings)),
            counts=self.runs.are_quiet({}, settings),
            meaning=meaning,
        )

    # --- runs and what they say -----------------------------------------------------------------------------

    def _run(
        self, settings: Mapping[str, Any], *, spare: float = 0.0, beside: Mapping[str, Any] | None = None
    ) -> Trial:
        """Hold a trial, which leaves so many seconds of the budget, and comes after what it is beside."""
        self.tell(f"run {len(self.runs) + 1}: {key(settings) or 'as it is'}")
        after = -1 if beside is None else self.runs.last(beside)
        trial = self.ledger.hold(
            settings, lambda folder: self.hold(settings, folder, self._left() - spare), after=after
        )
        if self.runs.add(settings, trial, self.ledger.last):
            self._begin_anew()
        return trial

    def _begin_anew(self) -> None:
        """On another machine: what changes are compared with is measured there too."""
        self.tell(f"on {self.runs.host} now: what was kept is measured anew")
        for settings in ({}, dict(self.search.kept)):
            for _ in range(2 - len(self.runs.rates(settings))):
                self._run(settings)
            self._require_rate(settings)

    def _require_rate(self, settings: Mapping[str, Any]) -> None:
        if self.runs.rates(settings):
            return
        last = self.runs.of(settings)[-1]
        cure = "run it as it stands first, or give it longer with --budget SECONDS"
        if last.outcome == "thrashed" or "OutOfMemory" in last.reason:
            cure = "memory is what limits it: find a part of the batch that fits, stoker tune --micro-batch"
        how = f"with {key(settings)}" if settings else "as it is"
        told = f"{self.script} could not be measured {how} ({last.outcome}: {last.reason})"
        raise TrialFailed(f"{told}. What to do: {cure}")

    def _unit(self) -> str:
        return next(trial.rates.unit for trial in self.runs.of({}) if trial.rates is not None)

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    # --- what is still to be had ----------------------------------------------------------------------------

    @property
    def _trial_took(self) -> float:
        """Seconds of a trial, by the longest of the script as it is."""
        return max(trial.seconds for trial in self.runs.of({}) if trial.rates is not None)

    @property
    def _starting(self) -> float:
        """Seconds to its first step."""
        return max(trial.first or 0.0 for trial in self.runs.of({}) if trial.rates is not None)

    @property
    def _again(self) -> float:
        """Seconds to run what is kept once more."""
        runs = self.runs.of(self.search.kept)
        return max((trial.seconds for trial in runs if trial.rates is not None), default=self._trial_took)

    def _takes(self, candidate: Candidate) -> float:
        """Seconds of a candidate's trial: it starts as the script does, then makes its steps as predicted."""
        starting = self._starting
        faster = 1.0 if candidate.predicted is None else max(1.0, candidate.predicted.low)
        return starting + (self._trial_took - starting) / faster + _LONGER * candidate.seconds

    def _checking(self, candidate: Candidate) -> float:
        """Seconds for a change's probe, and for those without it that are needed and not there yet."""
        took = self.checks.took
        if took is None:
            last = next(trial for trial in reversed(self.runs.of({})) if trial.rates is not None)
            assert last.rates is not None and last.rate is not None
            took = self._starting + PROBE_STEPS * last.rates.size / last.rate + _ENDING
        return took * self.checks.missing({**self.search.kept, candidate.change: candidate.value})

    def _is_time_for(self, candidate: Candidate, seconds: float) -> bool:
        """Whether the budget has room for trials that take so long, and for looking at what was changed."""
        return self._left() > max(_LEAST_SECONDS, seconds + self._checking(candidate) - _GRACE)

    def _over(self, candidate: Candidate) -> str | None:
        """Why the search ends before a candidate, where its time is up."""
        takes = self._takes(candidate) + self._again - _LONGER * candidate.seconds
        if self._is_time_for(candidate, takes):
            return None
        more = "" if self.tried else " before a change was tried: give more with --budget SECONDS"
        return f"the budget is used up{more}"

    @property
    def _reached(self) -> float:
        """How many times as fast as the script what is kept is."""
        kept = self.search.kept
        return self.runs.rate(kept, {}) / self.runs.rate({}, kept)

    def _enough(self, candidate: Candidate) -> str | None:
        """Why a candidate is not worth a trial: it cannot pass the ceiling, which is reached nearly."""
        if self.ceiling is None or self._lifted or candidate.lifts:
            return None
        reached = self._reached / self.ceiling
        if reached <= 1 - ENOUGH:
            return None
        return f"computing alone would be {max(0.0, 1 / reached - 1):.0%} faster"


def _refusal(candidate: Candidate, meaning: Meaning) -> str:
    """Why a change is refused; of parts of a batch, with what to write instead."""
    if candidate.change != "micro_batch":
        return meaning.by
    return f"{meaning.by}. Write them in the loop, as its loss wants it:\n{lines(candidate.value)}"


def _left_alone(trial: Trial, change: str) -> str | None:
    """Why the change did nothing in the script, where it says so itself."""
    mark = f"left alone: {change}: "
    told = [line for line in trial.told if line.startswith("changed: ")]
    alone = [line for line in told if mark in line]
    return alone[-1][alone[-1].index(mark) :] if alone and len(alone) == len(told) else None
