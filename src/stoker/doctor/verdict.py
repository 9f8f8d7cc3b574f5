"""From evidence to a verdict: the causes in order, what was ruled out and by what, and the ceilings. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from stoker.doctor.causes import ALL
from stoker.doctor.ceilings import After
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, RuledOut

# Of a step, from which on the device is what it takes.
_BUSY = 0.85
# How sure a verdict without an alarm is where waiting was not measured: by cores that may be at work on the
# model as well as on its data; and by nothing but what was looked for and not found.
_CORES_ALONE, _BY_NO_WAIT = 0.5, 0.4
NOT_MEASURED = "no loader was seen: waiting for data was not measured"
HEALTHY, COMPUTE_BOUND, UNKNOWN = "healthy", "compute-bound", "unknown"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A cause as the verdict names it. `ceiling_after`: steps a second with it and those before it cured.

    `computes`: it lies in computing itself, so that the rate with held batches pays for it too.
    """

    cause: str
    share: float | None
    certainty: float
    evidence: tuple[str, ...]
    cures: tuple[Cure, ...]
    ceiling_after: float | None
    computes: bool = False

    @property
    def changes(self) -> tuple[str, ...]:
        """The ids of its cures."""
        return tuple(dict.fromkeys(cure.change for cure in self.cures))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a run is slow, what it is not, and how fast it could be."""

    cause: str
    share: float | None
    certainty: float
    why: tuple[str, ...]
    named: tuple[Named, ...]
    eliminated: Mapping[str, str]
    untold: tuple[str, ...]
    ceilings: Mapping[str, float | None]
    rate: float

    @property
    def ceiling_after(self) -> float | None:
        """Steps a second with the first cause cured; None where it is not known, or none was found."""
        return self.named[0].ceiling_after if self.named else None

    def to_json(self) -> dict[str, Any]:
        """The verdict as `stoker doctor --json` prints it."""
        return {
            "verdict": {
                "cause": self.cause,
                "share": self.share,
                "confidence": self.certainty,
                "ceiling_after": self.ceiling_after,
                "why": list(self.why),
                "cures": [
                    {
                        "change": cure.change,
                        "value": cure.value,
                        "text": cure.text,
                        "kind": cure.kind,
                        "risk": cure.risk,
                    }
                    for cure in (self.named[0].cures if self.named else ())
                ],
                "also": [
                    {
                        "cause": one.cause,
                        "share": one.share,
                        "confidence": one.certainty,
                        "ceiling_after": one.ceiling_after,
                        "why": list(one.evidence),
                        "cures": list(one.changes),
                    }
                    for one in self.named[1:]
                ],
            },
            "eliminated": [{"cause": cause, "by": by} for cause, by in self.eliminated.items()],
            "untold": list(self.untold),
            "ceilings": dict(self.ceilings),
            "rate": self.rate or None,  # of a run without a step there is none
        }


def reach(run: Evidence) -> Verdict:
    """Judge every cause, and put those that are found in order."""
    found: list[tuple[str, Found, tuple[Cure, ...]]] = []
    eliminated: dict[str, str] = {}
    untold: list[str] = []
    for cause in ALL:
        judged = cause.judge(run)
        if isinstance(judged, RuledOut):
            eliminated[cause.ID] = judged.by
        elif judged is None:
            untold.append(cause.ID)
        elif judged.is_minor:
            eliminated[cause.ID] = f"it costs {judged.share or 0.0:.0%} of the step"
        else:
            found.append((cause.ID, judged, cause.CURES if judged.cures is None else judged.cures))
    if all(judged.behind for _, judged, _ in found):
        untold += [cause for cause, _, _ in found]
        found = []
    found.sort(key=lambda one: one[1].weight, reverse=True)
    named = _in_order(run, found)
    if named:
        first = named[0]
        name, share, certainty, why = first.cause, first.share, first.certainty, first.evidence
    else:
        name, share, certainty, why = _without_alarm(run)
    return Verdict(
        cause=name,
        share=share,
        certainty=certainty,
        why=why,
        named=named,
        eliminated=eliminated,
        untold=tuple(untold),
        ceilings={
            "compute": None if run.compute is None else 1 / run.compute,
            "loader": None if run.loader is None else 1 / run.loader,
            "copy": _copy_ceiling(run),
        },
        rate=1 / run.step,
    )


def _copy_ceiling(run: Evidence) -> float | None:
    """Steps a second that the bus would allow, by the way that most of a step's bytes take now."""
    moved, trace = run.copied, run.trace
    if moved is None or trace is None:
        return None
    pinned, pageable = moved.seconds_for(trace.pageable_bytes + trace.pinned_bytes)
    seconds = pageable if trace.pageable_bytes > trace.pinned_bytes else pinned
    return 1 / seconds if seconds > 0 else None


def _in_order(run: Evidence, found: list[tuple[str, Found, tuple[Cure, ...]]]) -> tuple[Named, ...]:
    """With the rate after each cure, those before it cured as well."""
    named, after = [], After(run)
    for cause, judged, cures in found:
        named.append(
            Named(
                cause=cause,
                share=judged.share,
                certainty=judged.certainty,
                evidence=judged.evidence,
                cures=cures,
                ceiling_after=after.cure(cause, judged),
                computes=judged.computes,
            )
        )
    return tuple(named)


def _without_alarm(run: Evidence) -> tuple[str, float | None, float, tuple[str, ...]]:
    if not isfinite(run.step):
        why = "nothing is known of its end" if run.ending is None else run.ending.why
        died = f"the script died before a step could be observed: {why}"
        return (
            UNKNOWN,
            None,
            0.0,
            (died, "to measure next: the script as it stands, to the line that ends it"),
        )
    if run.lost >= ALARM:
        return (
            UNKNOWN,
            run.lost,
            0.0,
            ("the loop waits for data, and nothing that was measured says why", _to_measure_next(run)),
        )
    waiting = f"waiting for data is {run.lost:.0%} of the step" if run.waits_known else NOT_MEASURED
    waited = run.shares.get("wait") or 0.0
    if run.compute is not None:  # no more than held batches would save
        waited = min(waited, 1 - run.compute / run.step)
    if waited >= ALARM:
        return (
            UNKNOWN,
            waited,
            0.0,
            (f"{waiting}, and starting its workers {run.starting:.0%}", _to_measure_next(run)),
        )
    if run.rare_stalls is not None and run.rare_stalls >= ALARM:
        return UNKNOWN, run.rare_stalls, 0.0, _rarely_stalled(run, run.rare_stalls)
    if run.trace is not None and run.trace.busy_share >= _BUSY:
        return (
            COMPUTE_BOUND,
            0.0,
            0.9 if run.waits_known else 0.8,
            (waiting, f"the device is busy {run.trace.busy_share:.0%} of the step"),
        )
    usable = run.host.get("usable_cores")
    if usable and run.saturates(usable):
        sure = 0.8 if run.waits_known else _CORES_ALONE
        return COMPUTE_BOUND, 0.0, sure, (waiting, f"{run.cores:.2g} of {usable:g} cores are computing")
    if not run.waits_known:
        return HEALTHY, 0.0, _BY_NO_WAIT, (waiting,)
    return HEALTHY, 0.0, 0.8 if run.compute is not None else 0.6, (waiting,)


def _rarely_stalled(run: Evidence, share: float) -> tuple[str, str]:
    """One save in a few seconds may be the only one of an hour, or one of many."""
    return (
        f"one or two of {run.steps} steps, which the loop itself held up, took {share:.0%} of the time: too "
        "few to tell whether they come again",
        "to measure next: more steps (stoker run, then stoker doctor on its record)",
    )


def _to_measure_next(run: Evidence) -> str:
    """What could not be measured comes first; where all was, what no experiment looks into."""
    if run.missing:
        return "to measure next: " + "; ".join(f"{name} ({why})" for name, why in run.missing.items())
    if run.make is None:
        return "to measure next: a profile of what makes the batches, which is no DataLoader's dataset"
    parts = {name: run.part_of_making(name) for name in ("read", "transform", "collate", "queued")}
    most = max(parts, key=lambda name: parts[name])
    return (
        f"to measure next: a profile of a worker, of whose time {parts[most]:.0%} is {most} (py-spy record "
        f"--pid, or cProfile around the dataset's own code)"
    )
