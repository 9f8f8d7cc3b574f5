"""The diagnosis as a run of the script as it is: the stretch in which it only observed the loop."""

from socket import gethostname

from stoker.doctor.examination import Diagnosis
from stoker.tune.stretches import LEAST_STEPS, epoch_of, length, rates
from stoker.tune.trial import Trial
from stoker.watch import Record

# Stretches that tell a rate here: a small budget's diagnosis observes for 3 s.
_LEAST_STRETCHES = 2


def trial_of(told: Diagnosis) -> Trial | None:
    """A trial without changes; None where too few steps were observed."""
    part = next((one for one in told.method if one.name == "observe"), None)
    if part is None or part.began is None or part.ended is None:
        return None
    ranks = Record.open(told.record).ranks
    first = ranks[min(ranks)]
    steps = list(first.steps())
    seen = [step for step in steps if part.began <= step.t <= part.ended]
    if len(ranks) > 1 or len(seen) <= _LEAST_STRETCHES * LEAST_STEPS:
        return None
    loaders = first.about.get("loaders") or []
    found = rates(
        [step.t for step in seen],
        [step.samples for step in seen],
        length(loaders, len(seen) - 1),
        list(first.resources()),
        turns={at for at, step in enumerate(seen) if step.startup},
        epoch=epoch_of(loaders, len(steps)),
    )
    if len(found.each) < _LEAST_STRETCHES:
        return None
    return Trial(
        settings={},
        outcome="measured",
        reason="observed in the diagnosis",
        rates=found,
        first=None,
        seconds=part.seconds,
        vram=None,
        told=(),
        record=told.record,
        host=gethostname(),
    )
