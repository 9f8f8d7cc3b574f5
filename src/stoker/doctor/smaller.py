"""A script that dies of the card's memory, run again with smaller batches: which run, and their peaks."""

from collections.abc import Callable
from dataclasses import replace

from stoker.doctor.device_evidence import missing_of, read_fresh, read_sizes_that_ran
from stoker.doctor.evidence import Evidence
from stoker.doctor.parts import Parts
from stoker.scratch import Result

# A quarter first: the sizes around it are tried in the same run, up to half of what died. Then less, down to
# single samples, from which sizes only grow.
_PARTS_OF_IT = (4, 16, 64)
_LEAST_SECONDS = 8.0
_SIZES_ALONE = Parts(
    warm_steps=Parts.warm_steps,  # an optimizer's state lies beside activations from the second on
    observe_steps=1,
    observe_seconds=0.0,
    observe_most=6.0,
    replay_steps=1,
    replay_seconds=0.0,
    drain_seconds=0.0,
    storage_seconds=0.0,
    device=True,
    sizes_alone=True,
)


def run_smaller(
    hold: Callable[[str, Parts, float], Result],
    name: str,
    found: Evidence,
    left: Callable[[], float],
    tell: Callable[[str], None],
) -> Evidence:
    """The evidence with the sizes that ran, where the script has a loader whose batch can be set."""
    overflow = found.overflow
    if overflow is None or overflow.steps:
        return found
    if not overflow.samples or overflow.samples < 2:
        return _without(found, "no loader whose batch could be made smaller")
    tried: list[int] = []
    for part in _PARTS_OF_IT:
        batch = max(1, overflow.samples // part)
        if batch in tried:
            break
        if left() < _LEAST_SECONDS:
            return _without(found, f"{_died(tried)}the budget was used up before a batch of {batch} was run")
        tried.append(batch)
        tell(f"it ran out of the card's memory; trying batches of {batch} in place of {overflow.samples}")
        parts = replace(_SIZES_ALONE, batch=(batch, overflow.workers or 0))
        result = hold(f"{name}-batch{batch}", parts, left())
        points = read_sizes_that_ran(result.messages)
        if points:
            missing = {**found.missing, **missing_of(result.messages)}
            return replace(found, resized=points, fresh=read_fresh(result.messages), missing=missing)
    return _without(found, f"{_died(tried)}no smaller one is left to try")


def _died(tried: list[int]) -> str:
    return f"batches of {', '.join(map(str, tried))} did not run either; " if tried else ""


def _without(found: Evidence, why: str) -> Evidence:
    return replace(found, missing={**found.missing, "resize": why})
