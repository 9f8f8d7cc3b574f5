"""The loop and its loader apart: steps with held batches, and batches with nobody computing. Pure."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from stoker.doctor.steadiness import by_stretches, since_startup, spread_of
from stoker.watch import Step

# Steps or batches of an experiment, for a mean of them.
_LEAST_HELD = 4
# Seconds in which a loop that stood waiting comes up to speed. On 2 cores, after waits of 40 ms, steps with
# held batches took 2.7 ms in the first quarter of a second, 2.2 and 2.0 in the next two, then 1.7 to 1.9.
_SETTLING = 0.5
# Of the steps with held batches, the part that must be left when those beside which workers still filled
# their queue are taken away.
_LEAST_LEFT = 0.3


def replayed(
    steps: Iterable[Step],
    told: Mapping[str, Any] | None,
    missing: MutableMapping[str, str],
    *,
    workers: int,
    filling: float = 0.0,
) -> tuple[float | None, float | None]:
    """What a step took with held batches, and by what share that may be off, nine times in ten.

    Those in which an epoch began are no measure of it; nor are the first ones, in which the loop comes up to
    speed, and for the seconds of `filling` workers are at work on what nobody draws any more; as long as
    enough are left.
    """
    if told is None:
        missing.setdefault("replay", "it was not held, or did not come to its end")
        return None, None
    held = [step for step in steps if told["began"] < step.t <= told["t"] + 1e-3][1:]
    held = (
        since_startup(held, workers) or [step for step in held if not step.startup] or _begun(held, workers)
    )
    if len(held) < _LEAST_HELD:
        missing["replay"] = f"only {len(held)} steps could be timed"
        return None, None
    since = told["began"] + max(_SETTLING, filling)
    left = [step.seconds for step in held if step.t - step.seconds >= since]
    if len(left) < max(_LEAST_HELD, _LEAST_LEFT * len(held)):
        left = [step.seconds for step in held]
    return by_stretches(left), spread_of(left)


def _begun(steps: Iterable[Step], workers: int) -> list[Step]:
    """Of epochs of one step each, steps without their beginning; none where that starts or wakes workers."""
    return [] if workers else [step._replace(wait=(step.wait or 0.0) - step.startup) for step in steps]


def drained(told: Mapping[str, Any] | None, missing: MutableMapping[str, str]) -> float | None:
    """What a batch took with nobody computing."""
    if told is None:
        missing.setdefault("drain", "it was not held, or did not come to its end")
        return None
    if told["batches"] < _LEAST_HELD:
        missing["drain"] = f"only {told['batches']} batches came after those that lay ready"
        return None
    return float(told["seconds"] / told["batches"])
