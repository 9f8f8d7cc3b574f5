"""Whether what the search for a micro-batch found holds: nothing is recommended that was not compared."""

from collections.abc import Callable
from dataclasses import replace

from stoker.changes.parts import lines
from stoker.errors import TrialFailed
from stoker.tune.meaning import Meaning
from stoker.tune.micro_found import MicroBatch

Check = Callable[[int, int | None], Meaning]


def check(found: MicroBatch, reference: int | None, checked: Check) -> MicroBatch:
    """Hold what was found beside a size of larger parts, or what else ran; refused if it means another thing.

    Refused too where that is not known. `reference` is that size; the batch as it is is None to `checked`.
    """
    if found.size is None or found.size >= found.batch:
        return found
    if reference is None:
        return _refused(found, "no other size ran, so its weights are not compared")
    try:
        meaning = checked(found.size, None if reference >= found.batch else reference)
    except TrialFailed as error:
        return _refused(found, f"its weights could not be compared: {error}")
    if meaning.holds:
        return replace(found, check=meaning)
    return replace(_refused(found, meaning.by), check=meaning)


def _refused(found: MicroBatch, why: str) -> MicroBatch:
    """The whole batch where that ran, otherwise nothing; with the reason, and the lines to write."""
    assert found.size is not None
    reason = (
        f"micro-batches of {found.size} are the fastest, and refused: {why}. "
        f"Write them in the loop, as its loss wants it:\n{lines(found.size)}"
    )
    if found.whole is not None:
        return replace(found, size=found.batch, rate=found.whole, reason=reason)
    return replace(found, size=None, rate=None, reason=reason)
