"""The speed model: the rate after a change, with an interval, and no faster than the next ceiling. Pure.

A step takes as long as the slowest of three parts, or their sum where they do not overlap:

compute
    what a step takes with held batches;
loader
    what its batches take with nobody computing: measured for one or two numbers of workers, and between and
    beyond them a line through the measured rates, never steeper than one worker's own rate;
cores
    the CPU time of a step, the loop's and the workers', over the cores that may be used.

Rates are in steps of the script's own size: after a change of the batch, one step counts for as many as its
samples make. The interval is the spread that was measured, and by how much earlier predictions were wrong
(`calibration.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot
from typing import Any

from stoker.doctor.evidence import Evidence

# What a prediction may be off by where none was ever tried, as a share.
UNTRIED = 0.15
# Changes after which batches cost the loop nothing: they come from memory, or are read ahead of time.
_NO_LOADER = frozenset({"feed", "gpu_transform"})
# Changes to what the loop itself does: the model's own ceiling moves with them.
_OF_THE_LOOP = frozenset(
    {"rarer", "async_save", "detach", "bucket", "pad", "dynamic", "debug_off", "dtype", "threads"}
)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure with its bounds: nine in ten are to lie between them."""

    low: float
    mid: float
    high: float

    def to_json(self) -> dict[str, float]:
        """The three of them."""
        return {"low": self.low, "mid": self.mid, "high": self.high}

    def of(self, amount: float) -> "Interval":
        """How long an amount takes at such a rate: the highest rate takes the least time."""
        return Interval(low=amount / self.high, mid=amount / self.mid, high=amount / self.low)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One setting altered. `value` is None where it is no number or switch, as for another way to read."""

    change: str
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        """As settings hold it."""
        return {"change": self.change, "value": self.value}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Steps a second after some changes, and which part they then wait for."""

    changes: tuple[Change, ...]
    rate: Interval
    limit: str

    @property
    def name(self) -> str:
        """What was changed, by which scores are kept."""
        return "+".join(sorted(change.change for change in self.changes))

    def to_json(self) -> dict[str, Any]:
        """The prediction as a calibration file holds it."""
        return {
            "changes": [change.to_json() for change in self.changes],
            "limit": self.limit,
            **self.rate.to_json(),
        }


def predict(
    run: Evidence, changes: Sequence[Change], errors: Mapping[str, float] | None = None
) -> Prediction | None:
    """The rate after some settings are changed together; None where what was measured cannot tell.

    `errors` says by how much predictions for a change were wrong so far, as shares.
    """
    wanted = {change.change: change.value for change in changes}
    if not wanted or set(wanted) - set(_SETTINGS):
        return None
    now = _Loop.of(run)
    if now is None:
        return None
    then = now
    for name, value in wanted.items():
        changed = _SETTINGS[name](run, then, value)
        if changed is None:
            return None
        then = changed
    before, after = now.seconds(run), then.seconds(run)
    if before is None or after is None:
        return None
    # What the parts do not explain stays, as long as the run waits for the same part.
    excess = run.step * (1 - run.startup) / before[0]
    stays = excess if after[1] == before[1] and before[0] else 1.0
    if "prefetch_factor" in wanted and stays > 1 and now.prefetch:
        stays = 1 + (stays - 1) * min(1.0, now.prefetch / then.prefetch)
    seconds = after[0] * stays + then.startup
    floor = max(seconds, run.compute or 0.0)
    return _predicted(run, tuple(changes), 1 / floor, after[1], errors)


def predict_cure(
    run: Evidence, change: str, share: float | None, errors: Mapping[str, float] | None = None
) -> Prediction | None:
    """The rate once a cause is gone that costs such a share of the step, by a change to the script."""
    done = (Change(change=change),)
    if change in _OF_THE_LOOP:
        if share is None or share >= 1:
            return None
        seconds, limit = run.step * (1 - share), "compute"
        if run.workers and run.loader is not None and run.loader > seconds:
            seconds, limit = run.loader, "loader"
        return _predicted(run, done, 1 / seconds, limit, errors)
    if run.compute is None:
        return None
    if change in _NO_LOADER:
        return _predicted(run, done, 1 / run.compute, "compute", errors)
    if share is None or share >= 1:
        return None
    return _predicted(run, done, 1 / max(run.compute, run.step * (1 - share)), "compute", errors)


def _predicted(
    run: Evidence,
    changes: tuple[Change, ...],
    rate: float,
    limit: str,
    errors: Mapping[str, float] | None,
) -> Prediction:
    known = errors or {}
    wrong = max(known.get(change.change, known.get("", UNTRIED)) for change in changes)
    half = hypot(run.spread or 0.0, wrong)
    return Prediction(
        changes=changes,
        rate=Interval(low=rate * exp(-half), mid=rate, high=rate * exp(half)),
        limit=limit,
    )


# --- the parts of a step ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """A loop by its settings: what the model varies. Times are of a step of the script's own size."""

    workers: int
    prefetch: int
    compute: float
    startup: float
    loader_scale: float = 1.0

    @classmethod
    def of(cls, run: Evidence) -> "_Loop | None":
        if run.compute is None or run.drawn is None or run.drawn.workers is None:
            return None
        return cls(
            workers=run.workers,
            prefetch=run.drawn.prefetch or 2,
            compute=run.compute,
            startup=run.startup * run.step,
        )

    def seconds(self, run: Evidence) -> tuple[float, str] | None:
        """A step's time, loaders starting up apart, and the part that it waits for."""
        loader = loader_seconds(run, self.workers)
        if loader is None:
            return None
        loader *= self.loader_scale
        if not self.workers:
            return self.compute + loader, "no overlap"
        parts = {"compute": self.compute, "loader": loader}
        cores = _core_seconds(run)
        if cores is not None:
            parts["cores"] = cores
        limit = max(parts, key=lambda name: parts[name])
        return parts[limit], limit


def loader_seconds(run: Evidence, workers: int) -> float | None:
    """What the loader takes for a step's batches with so many workers and nobody computing.

    Between two measured numbers the rate is on a line; beyond them it goes on, but no worker gives more than
    each did where it was measured. None where nothing was.
    """
    points = _loader_points(run)
    if not points:
        return None
    if not workers:
        return 1 / points[0] if 0 in points else None
    measured = sorted((max(1, count), rate) for count, rate in points.items())
    return 1 / _rate_at(measured, workers)


def _loader_points(run: Evidence) -> dict[int, float]:
    """Rates in steps a second by the number of workers."""
    points = {}
    if run.loader:
        points[run.workers] = 1 / run.loader
    if run.loader_with is not None and run.loader_with[1]:
        points[run.loader_with[0]] = 1 / run.loader_with[1]
    return points


def _rate_at(measured: Sequence[tuple[int, float]], workers: int) -> float:
    first, last = measured[0], measured[-1]
    if workers <= first[0]:
        return first[1] * workers / first[0]
    if workers >= last[0]:
        if last[0] == first[0]:
            return last[1] * workers / last[0]
        slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
        return min(last[1] + slope * (workers - last[0]), last[1] * workers / last[0])
    return first[1] + (last[1] - first[1]) * (workers - first[0]) / (last[0] - first[0])


def _core_seconds(run: Evidence) -> float | None:
    """The CPU time of a step over the cores that may be used: no overlap makes a step shorter than that."""
    usable = run.host.get("usable_cores")
    if run.cores is None or not usable:
        return None
    return run.cores * run.step / float(usable)


# --- what a setting does to them --------------------------------------------------------------------------


def _with_workers(run: Evidence, loop: _Loop, value: Any) -> _Loop | None:
    return replace(loop, workers=int(value))


def _with_prefetch(run: Evidence, loop: _Loop, value: Any) -> _Loop | None:
    return replace(loop, prefetch=int(value)) if loop.workers else None


def _with_persistent(run: Evidence, loop: _Loop, value: Any) -> _Loop | None:
    """Workers stay, but an epoch still begins with an empty queue: its first batch is waited for."""
    if not value or not loop.workers or run.drawn is None:
        return None
    steps = (run.drawn.length or 0) / run.batches
    first = (run.make or 0.0) / steps if steps else 0.0
    return replace(loop, startup=min(loop.startup, first))


_SETTINGS: Mapping[str, Callable[[Evidence, _Loop, Any], _Loop | None]] = {
    "num_workers": _with_workers,
    "prefetch_factor": _with_prefetch,
    "persistent_workers": _with_persistent,
}
