"""A search from its beginning to its end: the diagnosis, the trials, and what was found, as a value."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from socket import gethostname
from typing import Any

from stoker.changes import Kind
from stoker.doctor import calibration
from stoker.doctor.examination import Diagnosis, examine, examine_ranks
from stoker.doctor.model import Interval
from stoker.facts.secrets import hide_secrets
from stoker.scratch import Guards
from stoker.tune.checking import TakeProbe
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import Probe, take
from stoker.tune.observed import trial_of
from stoker.tune.ranks import refuse_spawned
from stoker.tune.search import Finds, Search
from stoker.tune.trial import IDLE_SECONDS, VRAM_SHARE, Trial, hold
from stoker.tune.tuned import Tried, Tuned
from stoker.tune.tuner import Tuner
from stoker.watch.record import new_name

DEFAULT_BUDGET = 300.0
# Of the budget, for the diagnosis before the search. Of a small one more: in 13 s it saw the loops of
# two examples as they are, and nothing of their loaders.
_DIAGNOSIS, _DIAGNOSIS_SECONDS, _DIAGNOSIS_MOST = 0.3, 25.0, 0.45
# Of a trial after its first steps, and what part of the time that is left: three stretches take longer where
# steps do.
_TRIAL_SECONDS, _TRIAL_SHARE = 4.0, 0.05
# Under it the diagnosis is the first of the two runs of the script as it is: of 60 s a run of a script that
# makes 40 steps a second takes 10, and with two of them none were left for a change.
_SMALL_BUDGET = 90.0
# How many times as long as the script's own first step a change's may take, beyond the time of other steps,
# before it hangs: it may be compiled first.
_STARTS = 3.0
# For what was begun at a budget's end.
_LEAST_SECONDS = 5.0
# Of the card, beyond what the script as it is takes there: two runs of it do not reserve the same.
_VRAM_SLACK = 0.02


@dataclass(frozen=True, kw_only=True)
class Found:
    """A search that was held: what it began with, what came of it, and its folder."""

    command: tuple[str, ...]
    diagnosis: Diagnosis
    tuned: Tuned
    folder: Path
    seconds: float
    ranks: int = 1

    @property
    def ceiling(self) -> float | None:
        """How much faster computing alone is than the script."""
        return ceiling_of(self.diagnosis)


def begin(
    command: Sequence[str],
    *,
    home: Path,
    budget: float,
    kinds: frozenset[Kind],
    finds: Finds = "all",
    ranks: int = 1,
    offline: bool = False,
    tell: Callable[[str], None],
) -> tuple[Diagnosis, Search]:
    """Diagnose a script, and say what is to be searched for; `home` is the `.stoker` that is written to."""
    seconds = max(budget * _DIAGNOSIS, min(_DIAGNOSIS_SECONDS, budget * _DIAGNOSIS_MOST))
    if ranks > 1:
        told = examine_ranks(
            command, ranks=ranks, folder=home / "doctor", budget=seconds, tell=tell, offline=offline
        )
    else:
        told = examine(command, folder=home / "doctor", budget=seconds, tell=tell, offline=offline)
        refuse_spawned(1 if told.evidence.together is None else len(told.evidence.together.met.ranks))
    errors = calibration.errors_of(calibration.read_scores(home / calibration.NAME))
    search = Search(
        verdict=told.verdict, run=told.evidence, kinds=kinds, errors=errors, finds=finds, ranks=ranks
    )
    return told, search


def find(
    command: Sequence[str],
    *,
    home: Path,
    budget: float = DEFAULT_BUDGET,
    kinds: frozenset[Kind] = frozenset({"same", "redraw"}),
    finds: Finds = "all",
    resume: Path | None = None,
    ranks: int = 1,
    offline: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Found:
    """Hold a whole search. Its folder is a new one in `home`, or the one to resume.

    Of several `ranks` every trial is a group of them, begun and ended together. `offline` cuts every run of
    the script off the network.
    """
    began = time.monotonic()
    about = {
        "command": hide_secrets(command),
        "budget": budget,
        "kinds": sorted(kinds),
        "ranks": ranks,
        "script": _digest(Path(command[0])),
        "torch": version("torch"),
    }
    # One that cannot be resumed is refused before the diagnosis, which takes long.
    with ExitStack() as held:
        resumed = None if resume is None else held.enter_context(Ledger.resume(resume, about))
        told, search = begin(
            command,
            home=home,
            budget=budget,
            kinds=kinds,
            finds=finds,
            ranks=ranks,
            offline=offline,
            tell=tell,
        )
        ledger = resumed or held.enter_context(
            Ledger.begin(
                home / "tune" / new_name(), {**about, "host": gethostname(), "diagnosis": str(told.record)}
            )
        )
        scores = home / calibration.NAME

        def scored(one: Tried) -> None:
            if (score := score_of(one.candidate.modelled, one, told.verdict.rate)) is not None:
                calibration.keep(score, scores, values=one.settings)

        # What a diagnosis observed is the rate of one rank; a search that is resumed has its first run.
        is_first = budget < _SMALL_BUDGET and ranks == 1 and resume is None
        tuned = Tuner(
            search=search,
            ledger=ledger,
            hold=_hold(command, trial_of(told) if is_first else None, ranks, offline, ledger.before),
            probe=_probe(command, began + budget, ranks, offline),
            deadline=began + budget,
            ceiling=ceiling_of(told),
            tell=tell,
            scored=scored,
            script=" ".join(hide_secrets(command)),
        ).find()
        return Found(
            command=tuple(hide_secrets(command)),
            diagnosis=told,
            tuned=tuned,
            folder=ledger.folder,
            seconds=time.monotonic() - began,
            ranks=ranks,
        )


def score_of(predicted: Interval | None, tried: Tried, rate: float) -> calibration.Score | None:
    """A prediction beside what was measured; None where one is missing, or does not count.

    Both are ratios to the script as it is, times the `rate` that the diagnosis saw: what the machine did
    otherwise between the diagnosis and the trial is no error of the model's.
    """
    total = tried.total
    if predicted is None or total is None or not tried.counts:
        return None
    return calibration.Score(
        change="+".join(sorted(tried.settings)),
        low=predicted.low * rate,
        mid=predicted.mid * rate,
        high=predicted.high * rate,
        measured=total.mid * rate,
    )


def ceiling_of(told: Diagnosis) -> float | None:
    """How much faster computing alone is than the script."""
    compute = told.verdict.ceilings.get("compute")
    return None if compute is None else compute / told.verdict.rate


def _hold(
    command: Sequence[str],
    observed: Trial | None,
    ranks: int,
    offline: bool = False,
    before: Iterable[Trial] = (),
) -> Callable[[Mapping[str, Any], Path, float], Trial]:
    """Trials of a script; the first one as it is may be `observed` already, others held `before`.

    With a change it may have what leaves some of the card to others, or what it has as it is.
    """
    known = [] if observed is None else [observed]
    plain = [trial for trial in before if not trial.settings]
    starts = [trial.first for trial in plain if trial.first is not None]
    shares = [trial.vram_share for trial in plain if trial.vram_share is not None]

    def held(settings: Mapping[str, Any], folder: Path, left: float) -> Trial:
        if known and not settings:
            folder.mkdir(parents=True)
            return known.pop()
        seconds = min(_TRIAL_SECONDS, max(1.0, left * _TRIAL_SHARE))
        most = max(_LEAST_SECONDS, left)
        start = IDLE_SECONDS + _STARTS * max(starts) if starts else None
        trial = hold(
            command,
            settings,
            folder=folder,
            seconds=seconds,
            most=most,
            start=start,
            guards=Guards(vram_fraction=_vram_for(shares) if settings else None),
            ranks=ranks,
            offline=offline,
        )
        if not settings and trial.first is not None:
            starts.append(trial.first)
        if not settings and trial.vram_share is not None:
            shares.append(trial.vram_share)
        return trial

    return held


def _vram_for(shares: Sequence[float]) -> float:
    """Of the card, what a trial may have, by what those of the script as it is had."""
    return min(1.0, max([VRAM_SHARE, *(share + _VRAM_SLACK for share in shares)]))


def _digest(script: Path) -> str | None:
    """What tells a script from one that was changed since; None for a module's name."""
    return hashlib.sha256(script.read_bytes()).hexdigest() if script.is_file() else None


def _probe(command: Sequence[str], deadline: float, ranks: int, offline: bool = False) -> TakeProbe:
    def probed(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        left = max(0.0, deadline - time.monotonic()) + _LEAST_SECONDS
        return take(command, settings, seed=seed, most=left, dropout=dropout, ranks=ranks, offline=offline)

    return probed
