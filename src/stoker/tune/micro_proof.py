"""Whether what the search for a micro-batch found holds: nothing is recommended that was not compared."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from stoker.changes.parts import lines
from stoker.errors import TrialFailed
from stoker.tune.comparison import Ratio, compare, spread_of
from stoker.tune.meaning import Meaning
from stoker.tune.micro_found import MicroBatch
from stoker.tune.micro_trial import MicroTrial

Check = Callable[[int, int | None], Meaning]
# Runs a size once more; None where there is no time for it.
Again = Callable[[int], MicroTrial | None]
# Of each, in turn: two tell how much runs differ, and after four what is open stays open.
LEAST_RUNS, _MOST_RUNS = 2, 4


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


def prove(found: MicroBatch, again: Again) -> MicroBatch:
    """Hold what was found beside the whole batch, in runs by turns: left whole unless it is faster for sure.

    The search's own runs do not count: the whole batch was the first of them, and what was found is the one
    that chance favoured. Where the whole batch does not fit, parts need not be faster.
    """
    if found.size is None or found.size >= found.batch or found.whole is None:
        return found
    parts, whole, held, why = _by_turns(found.size, found.batch, again)
    ratio = _ratio(parts, whole)
    compared = replace(
        found,
        rate=_median(parts) or found.rate,
        whole=_median(whole) or found.whole,
        trials=(*found.trials, *held),
        ratio=ratio,
    )
    told = "" if ratio is None else f"{ratio.mid:.2f} times as fast ({ratio.within})"
    if ratio is not None and ratio.says == "faster" and not why:
        reason = f"{found.reason}; {told} as the whole batch, by {len(parts)} runs of each in turn"
        return replace(compared, reason=reason)
    because = "; ".join(filter(None, (told, why)))
    reason = f"micro-batches of {found.size} seemed the fastest, and are not beyond doubt: {because}"
    return replace(compared, size=found.batch, rate=compared.whole, reason=reason)


def _by_turns(size: int, batch: int, again: Again) -> tuple[list[float], list[float], list[MicroTrial], str]:
    """Rates of parts and of the whole, all trials, and what kept them from being told apart, if anything."""
    parts: list[float] = []
    whole: list[float] = []
    held: list[MicroTrial] = []
    while len(whole) < _MOST_RUNS:
        for rates, of in ((parts, size), (whole, batch)):  # the whole comes last: others may leave a machine
            one = again(of)
            if one is None:
                return parts, whole, held, "the time was up before they were compared: give a longer --budget"
            held.append(one)
            if one.rate is None:
                return parts, whole, held, f"{of} ran before, and not again: {one.reason}"
            rates.append(one.rate)
        ratio = _ratio(parts, whole)
        if ratio is not None and ratio.says != "open":
            break
    return parts, whole, held, ""


def _ratio(parts: list[float], whole: list[float]) -> Ratio | None:
    """None where too few ran."""
    if min(len(parts), len(whole)) < LEAST_RUNS:
        return None
    runs = {"parts": [[rate] for rate in parts], "whole": [[rate] for rate in whole]}
    return compare(runs["whole"], runs["parts"], spread_of(runs))


def _median(rates: list[float]) -> float | None:
    return median(rates) if rates else None


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
