"""How much of a step the model may take, and whether its forward was seen at all. Pure."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM

# Of a step: less is the hooks' own time, of a forward that ran elsewhere.
_UNSEEN = 0.01


def is_forward_seen(run: Evidence) -> bool:
    """Whether forward was told from the rest; a model that is run by no module's call lies in `other`."""
    forward, other = run.shares.get("forward") or 0.0, run.shares.get("other")
    return forward >= _UNSEEN or (other is not None and other < ALARM)


def most_of_the_model(run: Evidence) -> float:
    """The most of a step that the model may take: all but waiting, where its forward was not seen.

    No more than the step takes with held batches.
    """
    most = 1 - (run.shares.get("wait") or 0.0)
    if is_forward_seen(run):
        most = sum(run.shares.get(name) or 0.0 for name in ("forward", "backward", "update"))
    return most if run.compute is None else min(most, run.compute / run.step)
