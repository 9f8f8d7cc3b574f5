"""A search held: trials alternated with what is kept so far, until each change is told faster or not."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from stoker.changes import ALL, Kind
from stoker.errors import TrialFailed
from stoker.tune.comparison import Ratio, compare, spread_of
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import PROBE_STEPS, Meaning, Probe, identical, judge, redraws
from stoker.tune.search import ENOUGH, Candidate, Search
from stoker.tune.stretches import Rates
from stoker.tune.trial import Trial

# Runs of one change; what is still open then is not beyond doubt, and not kept.
_MOST_RUNS = 4
# Of a search, for the last trial to be whole.
_LEAST_SECONDS = 5.0
# What was planned may take so much longer: a budget holds within a few seconds.
_GRACE = 2.0
# What an epoch in which samples are held takes of one in which they are not: 7.5 s of 6.1 at a slow store.
_LONGER = 1.25
# What ending a process takes.
_ENDING = 0.5

Hold = Callable[[Mapping[str, Any], Path, float], Trial]
# With these settings, from this seed, and with what the script drops at random or without.
TakeProbe = Callable[[Mapping[str, Any], int, bool], Probe]
# kept: faster beyond doubt, and of its kind. slower, or no faster. open: not told within its runs.
# refused: faster, but graver than it says. guarded: ended by a guard, for memory or for standing still.
# broken: it failed by itself. Either ends a change, also where an earlier run of it had a rate.
Outcome = Literal["kept", "not faster", "open", "refused", "guarded", "broken"]
_GUARDED = ("stopped", "hung", "thrashed")
# Of the probes without a change: twice the same, to know what the script does by itself; and others, where
# losses may differ as much as they do from seed to seed.
_SEEDS: Mapping[Kind, Sequence[int]] = {
    "same": (0, 0),
    "redraw": (0, 0),
    "numerics": (0, 0, 1, 2),
    "optimization": (0, 0),
}


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

    def to_json(self) -> dict[str, Any]:
        """The trial as `stoker tune --json` prints it."""
        predicted, ratio = self.candidate.predicted, self.total
        return {
            "change": self.candidate.change,
            "value": self.candidate.value,
            "kind": ALL[self.candidate.change].kind,
            "outcome": self.outcome,
            "reason": self.reason,
            "rate": self.rate,
            "low": None if ratio is None else ratio.low,
            "ratio": None if ratio is None else ratio.mid,
            "high": None if ratio is None or not isfinite(ratio.high) else ratio.high,
            "runs": self.runs,
            "predicted": None if predicted is None else predicted.to_json(),
            "check": None if self.meaning is None else {"kind": self.meaning.kind, "by": self.meaning.by},
        }


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search found: the settings to keep, how much faster they are, and all that was tried."""

    settings: Mapping[str, Any]
    baseline: float
    best: float
    unit: str
    ratio: Ratio | None
    tried: tuple[Tried, ...]
    not_tried: tuple[str, ...]
    stopped: str
    runs: int


@dataclass
class Tuner:
    """Holds a search. `ceiling` is how much faster the script would be if it only computed.

    `scored` is given each candidate of which something was run now: a search that is resumed is not to score
    again what it finds in its ledger. `host` is the machine of the last trial: one that is resumed elsewhere
    keeps what was decided, and compares nothing of the one machine with the other.
    """

    search: Search
    ledger: Ledger
    hold: Hold
    probe: TakeProbe
    deadline: float
    ceiling: float | None
    tell: Callable[[str], None]
    scored: Callable[[Tried], None] = lambda tried: None
    runs: dict[str, list[Trial]] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    host: str | None = None
    # By settings, the number of their last trial in the ledger.
    _last: dict[str, int] = field(default_factory=dict)
    # What changes are probed beside: the script as it is, until a kept change draws otherwise; then that one,
    # since beside other draws no loss says what a later change does. Its probes are with dropout, or without.
    _base: Mapping[str, Any] = field(default_factory=dict)
    _probes: dict[bool, list[Probe]] = field(default_factory=dict)
    _probe_took: float | None = None
    # Whether what is kept may compute faster than the script does: the ceiling is not known any more then.
    _lifted: bool = False

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
        return Tuned(
            settings=best,
            baseline=self._rate({}),
            best=self._rate(best),
            unit=self._unit(),
            ratio=self._ratio({}, best) if best else None,
            tried=tuple(self.tried),
            not_tried=tuple(dict.fromkeys(self.search.not_tried)),
            stopped=enough or stopped,
            runs=sum(len(runs) for runs in self.runs.values()),
        )

    def _try(self, candidate: Candidate) -> Tried:
        """Run it, then what is kept, then it again, until the interval says something.

        What is faster is so beside a run of what is kept that came after it: else it may be the machine,
        which others have left meanwhile.
        """
        before = dict(self.search.kept)
        after = {**before, candidate.change: candidate.value}
        ratio, beside = None, False
        for number in range(_MOST_RUNS):
            if number and len(self._rates(before)) < len(self._rates(after)):
                self._run(before, beside=after)
                beside = True
            trial = self._run(after, spare=max(0.0, self._checking(candidate) - _GRACE))
            if trial.rates is None and (trial.outcome != "short" or not self._rates(after)):
                ended: Outcome = "guarded" if trial.outcome in _GUARDED else "broken"
                return self._tried(candidate, ended, f"{trial.outcome}: {trial.reason}", after, None)
            if alone := _left_alone(trial, candidate.change):
                one = self._tried(candidate, "not faster", alone, after, self._ratio(before, after))
                return replace(one, counts=False)
            ratio = self._ratio(before, after)
            if ratio.says == "faster" and not beside and self._is_time_for(candidate, self._again):
                self._run(before, beside=after)
                beside = bool(self._rates(after))
                if not beside:  # the search has begun anew on another machine
                    continue
                ratio = self._ratio(before, after)
            turn = self._takes(candidate)
            if len(self._rates(before)) < len(self._rates(after)) + 1:
                turn += self._trial_took
            told = ratio.says == "faster" or (ratio.says == "not faster" and not self._was_held_up(trial))
            if told or not self._is_time_for(candidate, turn):
                break
        assert ratio is not None
        if ratio.says != "faster":
            return self._tried(candidate, ratio.says, "", after, ratio)
        if not beside:
            alone = "what is kept was not run once more beside it: give more with --budget SECONDS"
            return self._tried(candidate, "open", alone, after, ratio)
        try:
            meaning = self._check(candidate, after)
        except TrialFailed as error:  # compiled anew, say, for longer than a probe may take
            return self._tried(candidate, "refused", f"not checked: {error}", after, ratio)
        if not meaning.holds:
            return self._tried(candidate, "refused", meaning.by, after, ratio, meaning)
        return self._tried(candidate, "kept", meaning.by, after, ratio, meaning)

    def _tried(
        self,
        candidate: Candidate,
        outcome: Outcome,
        reason: str,
        settings: Mapping[str, Any],
        ratio: Ratio | None,
        meaning: Meaning | None = None,
    ) -> Tried:
        measured = self._measured(settings)
        return Tried(
            candidate=candidate,
            settings=dict(settings),
            outcome=outcome,
            reason=reason,
            ratio=ratio,
            total=self._ratio({}, settings) if measured else None,
            rate=self._rate(settings) if measured else None,
            runs=len(self.runs[_key(settings)]),
            counts=any(not rates.disturbed for rates in measured),
            meaning=meaning,
        )

    def _check(self, candidate: Candidate, settings: Mapping[str, Any]) -> Meaning:
        gravest, dropout = self._gravest(candidate), not self._by_weights(candidate)
        allowed = "redraw" if gravest == "same" and "redraw" in self.search.kinds else gravest
        self.tell(f"{candidate.name}: what it means")
        before = self._probes.setdefault(dropout, [])
        if not before:
            before.append(self._take(self._base, 0, dropout))
        changed = self._take(settings, 0, dropout)
        seeds = _SEEDS[allowed]
        if identical(changed, before[0]):
            seeds = (0,)  # what the script does by itself, and from seed to seed, decides nothing then
        before += [self._take(self._base, seed, dropout) for seed in seeds[len(before) :]]
        if not dropout and "optimization" in self.search.kinds:
            allowed = "optimization"  # with BatchNorm it is that, and asked for
        beside = before if len(before) > 1 else before * 2
        meaning = judge(allowed, changed, beside, by_weights=not dropout)
        if meaning.holds and redraws(changed, before[0]):
            self._base, self._probes = dict(settings), {dropout: [changed]}
        return meaning

    def _gravest(self, candidate: Candidate) -> Kind:
        """Of all beside what it is probed beside: what was kept since has shown its own kind already."""
        return max((ALL[name].kind for name in self._beyond_base(candidate)), key=_gravity)

    def _by_weights(self, candidate: Candidate) -> bool:
        """Whether weights are to be compared: without dropout, which parts of a batch draw otherwise."""
        return any(ALL[name].check == "weights" for name in self._beyond_base(candidate))

    def _beyond_base(self, candidate: Candidate) -> set[str]:
        """The changes in a candidate's trial that are not in what it is probed beside."""
        kept = {name for name, value in self.search.kept.items() if self._base.get(name) != value}
        return {candidate.change, *kept}

    def _take(self, settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        began = time.monotonic()
        found = self.probe(settings, seed, dropout)
        self._probe_took = time.monotonic() - began
        return found

    # --- runs and what they say -----------------------------------------------------------------------------

    def _run(
        self, settings: Mapping[str, Any], *, spare: float = 0.0, beside: Mapping[str, Any] | None = None
    ) -> Trial:
        """Hold a trial, which leaves so many seconds of the budget, and comes after what it is beside."""
        key = _key(settings)
        self.tell(f"run {sum(len(runs) for runs in self.runs.values()) + 1}: {key or 'as it is'}")
        after = -1 if beside is None else self._last[_key(beside)]
        trial = self.ledger.hold(
            settings, lambda folder: self.hold(settings, folder, self._left() - spare), after=after
        )
        self._last[key] = self.ledger.last
        self.runs.setdefault(key, []).append(trial)
        moved = not self._is_here(trial)
        self.host = trial.host or self.host
        if moved:
            self._begin_anew()
        return trial

    def _begin_anew(self) -> None:
        """On another machine: what changes are compared with is measured there too."""
        self.tell(f"on {self.host} now: what was kept is measured anew")
        for settings in ({}, dict(self.search.kept)):
            for _ in range(2 - len(self._rates(settings))):
                self._run(settings)
            self._require_rate(settings)

    def _is_here(self, trial: Trial) -> bool:
        """Whether it ran on the machine of the last one; where that is not known it did."""
        return None in (self.host, trial.host) or trial.host == self.host

    def _require_rate(self, settings: Mapping[str, Any]) -> None:
        if self._rates(settings):
            return
        last = self.runs[_key(settings)][-1]
        cure = "run it as it stands first, or give it longer with --budget SECONDS"
        if last.outcome == "thrashed" or "OutOfMemory" in last.reason:
            cure = "memory is what limits it: find a part of the batch that fits, stoker tune --micro-batch"
        how = f"with {_key(settings)}" if settings else "as it is"
        told = f"the script could not be measured {how} ({last.outcome}: {last.reason})"
        raise TrialFailed(f"{told}. What to do: {cure}")

    def _was_held_up(self, trial: Trial) -> bool:
        """Whether others used the machine in a trial, as they do not in all of the script's."""
        plain = [one.rates.disturbed for one in self.runs[_key({})] if one.rates is not None]
        return trial.rates is not None and trial.rates.disturbed and not all(plain)

    def _rates(self, settings: Mapping[str, Any]) -> list[tuple[float, ...]]:
        """Of this machine."""
        return [found.each for found in _counting(self._measured(settings))]

    def _measured(self, settings: Mapping[str, Any]) -> list[Rates]:
        """Of this machine, those of runs that others held up too."""
        here = [trial for trial in self.runs.get(_key(settings), []) if self._is_here(trial)]
        return [trial.rates for trial in here if trial.rates is not None]

    def _ratio(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Ratio:
        known: dict[str, list[tuple[float, ...]]] = {}
        for key, runs in self.runs.items():
            for host in {trial.host for trial in runs}:
                # How much runs differ is learnt from all machines, each by itself.
                same = [trial.rates for trial in runs if trial.host == host and trial.rates is not None]
                known[f"{key} on {host}"] = [found.each for found in _counting(same)]
        spread = spread_of({key: rates for key, rates in known.items() if rates})
        return compare(self._rates(before), self._rates(after), spread)

    def _rate(self, settings: Mapping[str, Any]) -> float:
        return fmean(median(each) for each in self._rates(settings))

    def _unit(self) -> str:
        return next(trial.rates.unit for trial in self.runs[_key({})] if trial.rates is not None)

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    # --- what is still to be had ----------------------------------------------------------------------------

    @property
    def _trial_took(self) -> float:
        """Seconds of a trial, by the longest of the script as it is."""
        return max(trial.seconds for trial in self.runs[_key({})] if trial.rates is not None)

    @property
    def _starting(self) -> float:
        """Seconds to its first step."""
        return max(trial.first or 0.0 for trial in self.runs[_key({})] if trial.rates is not None)

    @property
    def _again(self) -> float:
        """Seconds to run what is kept once more."""
        runs = self.runs[_key(self.search.kept)]
        return max((trial.seconds for trial in runs if trial.rates is not None), default=self._trial_took)

    def _takes(self, candidate: Candidate) -> float:
        """Seconds of a candidate's trial: it starts as the script does, then makes its steps as predicted."""
        starting = self._starting
        faster = 1.0 if candidate.predicted is None else max(1.0, candidate.predicted.low)
        return starting + (self._trial_took - starting) / faster + _LONGER * candidate.seconds

    def _checking(self, candidate: Candidate) -> float:
        """Seconds for a change's probe, and for those without it that its kind needs and are not there yet.

        Of a change that is to leave all the same that is one: with bit-identical losses no other is taken.
        """
        took = self._probe_took
        if took is None:
            last = next(trial for trial in reversed(self.runs[_key({})]) if trial.rates is not None)
            assert last.rates is not None and last.rate is not None
            took = self._starting + PROBE_STEPS * last.rates.size / last.rate + _ENDING
        gravest = self._gravest(candidate)
        without = 1 if gravest == "same" else len(_SEEDS[gravest])
        known = self._probes.get(not self._by_weights(candidate), ())
        return took * (1 + max(0, without - len(known)))

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

    def _enough(self, candidate: Candidate) -> str | None:
        """Why a candidate is not worth a trial: it cannot pass the ceiling, which is reached nearly."""
        if self.ceiling is None or self._lifted or candidate.lifts:
            return None
        reached = self._rate(self.search.kept) / self._rate({}) / self.ceiling
        if reached <= 1 - ENOUGH:
            return None
        return f"computing alone would be {max(0.0, 1 / reached - 1):.0%} faster"


def _left_alone(trial: Trial, change: str) -> str | None:
    """Why the change did nothing in the script, where it says so itself."""
    mark = f"left alone: {change}: "
    lines = [line for line in trial.told if line.startswith("changed: ")]
    alone = [line for line in lines if mark in line]
    return alone[-1][alone[-1].index(mark) :] if alone and len(alone) == len(lines) else None


def _counting(known: Sequence[Rates]) -> Sequence[Rates]:
    """Of runs in which others left the machine alone; all where they did so in none."""
    return [found for found in known if not found.disturbed] or known


def _key(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in sorted(settings.items()))


def _gravity(kind: Kind) -> int:
    order: Sequence[Kind] = ("same", "redraw", "numerics", "optimization")
    return order.index(kind)
