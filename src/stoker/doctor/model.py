"""The speed model: the rate after a change, with an interval, and no faster than the next ceiling. Pure.

A step takes as long as the slowest of three parts, or their sum where they do not overlap:

compute
    what a step takes with held batches;
loader
    what its batches take with nobody computing: measured for one or two numbers of workers, and between and
    beyond them a line through the measured rates, never steeper than one worker's own rate, and bent by the
    cores that more workers queue for;
cores
    the CPU time of a step, the loop's and the workers', over the cores that may be used.

Rates are in steps of the script's own size: after a change of the batch, one step counts for as many as its
samples make. The interval is the spread that was measured, by how much earlier predictions were wrong
(`calibration.py`), and how far beyond what was measured it lies. Workers that are started anew in every epoch
take their time for each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, hypot, isfinite, log2
from statistics import fmean
from typing import Any

from stoker.doctor.ahead import step_seconds
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM
from stoker.doctor.samples import why_unpredicted
from stoker.doctor.worker_rates import rate_with

# What a prediction may be off by where few of its kind were tried, as a share. On 2 cores 7 settings missed
# by 0.1 to 12%, 12 of 13 feeds by 1.5 to 34%, 2 of 3 rewritten scripts by 6 and 12% (benchmarks/cures.md).
_UNTRIED_SETTING, _UNTRIED_SCRIPT = 0.10, 0.30
# And for each doubling of workers beyond those that were measured. On 2 cores, with 2 and 4 workers measured,
# 8, 12 and 16 of them at a store were predicted 7, 26 and 20% too high while others used the machine.
_UNTRIED_DOUBLING = 0.10
# What the mean step may be off by where too few were seen to tell: under 16. On 2 cores that others used as
# well, means of 8 to 15 steps of 65 and 116 ms were off by 13 to 45%, nine times in ten.
_UNTOLD_SPREAD = 0.30
# Changes after which nothing is made for a batch any more: it comes from memory.
_NO_LOADER = frozenset({"feed"})
# What the loop itself does for a batch that is held in the host's memory: drawing its numbers, then one
# gather. On 2 cores a loop of 0.7 ms waited 0.27 ms for its batches of 0.22 MB, and one of 3 to 5 ms, on a
# busy machine, 0.31 to 0.63 for those of 0.13 MB; alone, batches of 8 MB took 0.7 ms and small ones 0.14.
_HELD_SECONDS, _HELD_BYTES_A_SECOND = 0.28e-3, 10e9
# Samples that a held loader without workers reads again when an epoch begins (`feed/held_loader.py`).
_READ_AGAIN = 4
# Other changes to how batches are made and handed over; what is not among them is of the loop itself.
_OF_THE_INPUT = _NO_LOADER | {
    "num_workers", "prefetch_factor", "persistent_workers", "stage", "collate", "rechunk", "pack",
    "memory_map", "open_once", "batch_read", "batch_index", "batch_requests", "batch_transform",
    "block_order", "gpu_transform", "own_feed",
}  # fmt: skip
# What a batch takes after these nothing has measured: on the device, in another order, by other requests.
_UNMEASURED = {
    "gpu_transform": "what the transforms take on the device was not measured",
    "batch_transform": "what is left to the dataset then was not measured",
    "batch_requests": "what a whole batch takes by one request was not measured",
    "block_order": "reading in that order was not tried",
    "own_feed": "a feed in the DataLoader's place was not tried",
}
# Changes that were tried together, as one thread in each process.
_THREADS = frozenset({"threads", "worker_threads"})
# Changes that leave the script's text alone.
_SETTINGS = _THREADS | {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size"}
# Changes whose time was told by steps with that switched, by their name there; others have the same name.
_VARIANTS = {"amp": "bf16", "autocast": "bf16", "keep_cache": "kept_cache"}
_AS_IT_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure with its bounds: nine in ten are to lie between them."""

    low: float
    mid: float
    high: float

    def to_json(self) -> dict[str, float]:
        """The three of them."""
        return {"low": self.low, "mid": self.mid, "high": self.high}

    def time_for(self, amount: float) -> "Interval":
        """How long an amount takes at such a rate: the highest rate takes the least time."""
        return Interval(low=amount / self.high, mid=amount / self.mid, high=amount / self.low)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change. `value` is a setting's; `share` of the step is what the cause costs that it cures."""

    change: str
    value: Any = None
    share: float | None = None


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


def predict(
    run: Evidence, changes: Sequence[Change], errors: Mapping[str, float] | None = None
) -> Prediction | None:
    """The rate after some changes together; None where what was measured cannot tell.

    `errors` says by how much predictions for a change were wrong so far, as shares.
    """
    if not changes or not isfinite(run.step):
        return None
    if all(change.change in _THREADS and change.value == 1 for change in changes):
        found = None if run.one_thread is None else (run.one_thread, "compute")
    elif all(_is_of_the_loop(run, change) for change in changes):
        found = _without(run, changes)
    else:
        found = _by_parts(run, changes)
    if found is None:
        return None
    seconds, limit = found
    known = errors or {}
    wrong = max(known.get(change.change, untried(change.change)) for change in changes)
    half = hypot(_spread(run, changes, limit), wrong, _UNTRIED_DOUBLING * _doublings(run, changes))
    rate = 1 / seconds
    return Prediction(
        changes=tuple(changes),
        rate=Interval(low=rate * exp(-half), mid=rate, high=rate * exp(half)),
        limit=limit,
    )


def why_not_told(run: Evidence, change: Change) -> str | None:
    """Why a change has no prediction, where that is more than that its cause was not measured."""
    if change.change == "feed":
        return why_unpredicted(run, change.value)
    return _UNMEASURED.get(change.change)


def untried(change: str) -> float:
    """What a prediction may be off by, as a share, where too few of that change were tried to tell."""
    return _UNTRIED_SETTING if change in _SETTINGS else _UNTRIED_SCRIPT


def _is_of_the_loop(run: Evidence, change: Change) -> bool:
    """Whether it removes something that the loop itself does, and nothing was tried that tells more."""
    tried = change.change in _EFFECTS or _VARIANTS.get(change.change, change.change) in (run.variants or {})
    return not tried and change.change not in _OF_THE_INPUT and change.value is None


def _spread(run: Evidence, changes: Sequence[Change], limit: str) -> float:
    """How much that varied which the prediction rests on: the loop as it is, or a part of it alone."""
    tried, spread = run.step_with, run.spread
    if tried is not None and any(one.change == "num_workers" and one.value == tried[0] for one in changes):
        spread = tried[2]
    elif limit == "compute" and any(one.change in _NO_LOADER for one in changes):
        held = run.from_memory if any(one.change == "feed" for one in changes) else None
        spread = run.compute_spread if held is None else held[1]
    return _UNTOLD_SPREAD if spread is None else spread


def _doublings(run: Evidence, changes: Sequence[Change]) -> float:
    """How often workers are doubled beyond what was measured of them."""
    tried = [one[0] for one in (run.step_with, run.loader_with) if one is not None]
    most = max(1, run.workers, *tried)
    wanted = max(
        (int(one.value) for one in changes if one.change == "num_workers" and one.value), default=most
    )
    return max(0.0, log2(wanted / most))


def _without(run: Evidence, changes: Sequence[Change]) -> tuple[float, str] | None:
    """A step less what some of its own doings cost; a loader beside it may then be what is waited for.

    By what was observed: replays are too short for what comes every hundred steps.
    """
    if any(change.share is None for change in changes):
        return None
    left = 1 - sum(change.share or 0.0 for change in changes)
    if left <= 0:
        return None
    seconds = run.step * left
    if run.workers and run.loader is not None and run.loader > seconds:
        return min(run.step, run.loader), "loader"
    return seconds, "compute"


def _by_parts(run: Evidence, changes: Sequence[Change]) -> tuple[float, str] | None:
    """By the loop's parts after the changes, and by what was observed where it says more than they do."""
    now = _Loop.of(run)
    if now is None:
        return _as_observed(run, changes)
    then: _Loop | None = now
    # Those without a loader last: whatever was done to it is gone with it.
    for change in sorted(changes, key=lambda one: one.change in _NO_LOADER):
        if then is None:
            return None
        then = _EFFECTS.get(change.change, _other)(run, then, change)
    if then is None:
        return None
    before, after = now.seconds(run), then.seconds(run)
    if after is None:
        return _as_observed(run, changes)
    stays = 1.0
    if run.step_with is not None and then.workers == run.step_with[0] != now.workers:
        modelled = replace(now, workers=then.workers).seconds(run)
        stays = 1.0 if modelled is None else run.step_with[1] / modelled[0]
    elif before is not None and before[1] == after[1]:
        # What the parts do not explain stays, as long as the run waits for the same part.
        stays = _steady(run, then.startup < now.startup) / before[0]
        if stays > 1:
            stays = 1 + (stays - 1) * _unevenness_left(run, now, then)
    return max(after[0] * stays + then.startup, then.compute), after[1]


def _unevenness_left(run: Evidence, now: "_Loop", then: "_Loop") -> float:
    """A longer queue evens out what varies from batch to batch: what is left of that, as a share."""
    if then.prefetch <= now.prefetch or not now.workers:
        return 1.0
    compute = now.compute / run.batches
    before, after = (
        step_seconds(run.made, compute, workers=now.workers, prefetch=one.prefetch) for one in (now, then)
    )
    even = max(compute, fmean(run.made) / now.workers) if run.made else 0.0
    if before is None or after is None or before <= even:
        return now.prefetch / then.prefetch
    return max(0.0, after - even) / (before - even)


def _steady(run: Evidence, workers_stay: bool) -> float:
    """A step as it was observed, loaders starting up apart; and what that slows down too, if workers stay."""
    if workers_stay and run.settled is not None:
        return run.settled
    return run.step * (1 - run.startup)


def _as_observed(run: Evidence, changes: Sequence[Change]) -> tuple[float, str] | None:
    """Of a loop whose parts are not known, what was observed of it as it is and with other workers."""
    stay = any(change.change == "persistent_workers" for change in changes)
    seconds, startup = _steady(run, stay), run.step * run.startup
    tried = run.step_with
    for change in changes:
        if change.change == "persistent_workers":
            startup = min(startup, _first_batch(run))
        elif change.change == "num_workers" and tried is not None and change.value == tried[0]:
            seconds = tried[1]
        else:
            return None
    return seconds + startup, "not known"


# --- the parts of a step ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """A loop by its settings: what the model varies. Times are of a step of the script's own size."""

    workers: int
    prefetch: int
    compute: float
    startup: float
    # None: as it was measured for so many workers.
    loader: float | None = None
    # Of a step's CPU time, what is gone.
    saved: float = 0.0

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
        loader = self.loader if self.loader is not None else loader_seconds(run, self.workers)
        if loader is None:
            return None
        if not self.workers:
            return self.compute + loader, "compute" if not loader else "no overlap"
        parts = {"compute": self.compute, "loader": loader}
        cores = core_seconds(run)
        if cores is not None:
            parts["cores"] = cores - self.saved
        limit = max(parts, key=lambda name: parts[name])
        return parts[limit], limit


def workers_worth_trying(run: Evidence) -> int | None:
    """How many workers to try: twice as many; for a loop that makes its own batches as many as it needs.

    None where the loop hardly waits, or nothing is known of its loader. A stream gets one in place of none.
    """
    if run.drawn is None or run.drawn.workers is None or run.lost < ALARM or run.loader is None:
        return None
    if run.workers:
        return None if run.streams else 2 * run.workers
    most = 1 if run.streams else max(1, int(run.host.get("usable_cores") or 1))
    # As many as make a batch in the time of a step, and not one more for a rounding.
    return max(1, min(ceil(0.9 * run.loader / run.compute), most)) if run.compute else 1


def loader_seconds(run: Evidence, workers: int) -> float | None:
    """What the loader takes for a step's batches with so many workers and nobody computing.

    Between two measured numbers the rate is on a line; beyond them it goes on, but no worker gives more than
    each did where it was measured. None where nothing was.
    """
    points = {}
    if run.loader:
        points[run.workers] = 1 / run.loader
    if run.loader_with is not None and run.loader_with[1]:
        points[run.loader_with[0]] = 1 / run.loader_with[1]
    if not points:
        return None
    if not workers:
        return 1 / points[0] if 0 in points else None
    if 0 in points:  # a loop that makes its own batches does a worker's work
        points.setdefault(1, points.pop(0))
    measured = sorted((count, rate) for count, rate in points.items() if count)
    return 1 / rate_with(measured, workers, cores=core_seconds(run))


def core_seconds(run: Evidence) -> float | None:
    """The CPU time of a step over the cores that may be used: no overlap makes a step shorter than that."""
    usable = run.host.get("usable_cores")
    if run.cores is None or not usable:
        return None
    return run.cores * run.step / float(usable)


# --- what a change does to them ---------------------------------------------------------------------------


def _with_workers(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """Those that are started anew in every epoch take as long each, and then for the first batch."""
    if change.value is None:
        return None
    workers = int(change.value)
    if not loop.workers:
        return replace(loop, workers=workers, startup=_first_batch(run))
    first = min(loop.startup, _first_batch(run))
    return replace(loop, workers=workers, startup=first + (loop.startup - first) * workers / loop.workers)


def _with_prefetch(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    if not loop.workers or change.value is None:
        return None
    return replace(loop, prefetch=int(change.value))


def _with_persistent(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """Workers stay, but an epoch still begins with an empty queue: its first batch is waited for."""
    if not loop.workers or run.drawn is None:
        return None
    return replace(loop, startup=min(loop.startup, _first_batch(run)))


def _first_batch(run: Evidence) -> float:
    """What waiting for an epoch's first batch costs each of its steps; one may be left before its end."""
    if run.drawn is None or run.make is None:
        return 0.0
    return run.make * max(run.starts, run.batches / run.drawn.length if run.drawn.length else 0.0)


def _held(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """No workers are left for the loop to share the cores with, but it takes each batch from memory itself.

    Beside a GPU that is host time in which the device computes; else what it takes was tried, or goes by what
    others took. None where samples cannot be kept in memory, or it is not known whether they can.
    """
    if why_unpredicted(run, change.value) is not None:
        return None
    if run.on_gpu:
        return replace(loop, workers=0, loader=0.0, startup=0.0)
    if run.from_memory is not None and run.compute is not None:
        taken = run.from_memory[0] - run.compute
    else:
        taken = _HELD_SECONDS * run.batches + (run.batch_bytes or 0) * run.batches / _HELD_BYTES_A_SECOND
    return replace(loop, workers=0, loader=0.0, compute=loop.compute + taken, startup=_reading_again(run))


def _reading_again(run: Evidence) -> float:
    """What a look at some samples, when an epoch begins, costs each of its steps; workers take none."""
    if run.workers or run.drawn is None or not run.drawn.batch_size:
        return 0.0
    return _first_batch(run) * _READ_AGAIN / run.drawn.batch_size


def _from_local_disk(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """Reads then take CPU time alone."""
    if run.make is None:
        return None
    busy = min(run.make, float(run.making.get("cpu") or 0.0)) * run.batches
    return replace(loop, loader=busy / max(1, loop.workers))


def _handed_over_cheaply(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    if run.make is None:
        return None
    at_work = run.make - (run.making.get("queued") or 0.0)
    handed = float(run.making.get("handoff") or 0.0) * run.batches
    return replace(
        loop, loader=at_work * run.batches / max(1, loop.workers), saved=loop.saved + _over_cores(run, handed)
    )


def _with_batch(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """By steps that were run at other sizes; between two of them on a line, and never beyond."""
    if change.value is None or run.drawn is None or not run.drawn.batch_size:
        return None
    points = sorted((samples, seconds) for samples, seconds, _ in run.resized)
    size = int(change.value)
    if len(points) < 2 or not points[0][0] <= size <= points[-1][0]:
        return None
    after = next(at for at, (samples, _) in enumerate(points) if samples >= size)
    seconds = points[after][1]
    if points[after][0] != size:
        (low, fast), (high, slow) = points[after - 1], points[after]
        seconds = fast + (slow - fast) * (size - low) / (high - low)
    return replace(
        loop, compute=seconds * run.drawn.batch_size / size
    )  # a step of all its batches at that size


def _pinned(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """The bytes of a step that are not pinned yet go at the rate of those that are."""
    if run.copied is None:
        return None
    nbytes = run.copied.bytes if run.trace is None else run.trace.pageable_bytes
    pinned, pageable = run.copied.seconds_for(nbytes)
    return replace(loop, compute=max(0.0, loop.compute - (pageable - pinned)))


def _untold(run: Evidence, loop: _Loop, change: Change) -> None:
    """What is made elsewhere then, and costs what nothing has measured."""


def _other(run: Evidence, loop: _Loop, change: Change) -> _Loop | None:
    """By a replay with that switched; else by what its cause costs."""
    variants, name = run.variants or {}, _VARIANTS.get(change.change, change.change)
    if name in variants and _AS_IT_IS in variants:
        saved = variants[_AS_IT_IS] - variants[name]
        return replace(loop, compute=max(loop.compute - saved, variants[name]))
    if change.share is None or change.value is not None:
        return None
    if change.change not in _OF_THE_INPUT:
        model = sum(run.shares.get(name) or 0.0 for name in ("copy", "forward", "backward", "update"))
        return replace(loop, compute=max(loop.compute - change.share * run.step, model * run.step))
    current = loop.seconds(run)
    if current is None:
        return None
    return replace(loop, loader=max(0.0, current[0] - change.share * run.step), workers=max(1, loop.workers))


def _over_cores(run: Evidence, seconds: float) -> float:
    return seconds / float(run.host.get("usable_cores") or 1.0)


_EFFECTS: Mapping[str, Callable[[Evidence, _Loop, Change], _Loop | None]] = {
    "num_workers": _with_workers,
    "prefetch_factor": _with_prefetch,
    "persistent_workers": _with_persistent,
    "batch_size": _with_batch,
    "pin_memory": _pinned,
    "keep_pinned": _untold,
    "stage": _from_local_disk,
    "collate": _handed_over_cheaply,
    "feed": _held,
    **dict.fromkeys(_UNMEASURED, _untold),
}
