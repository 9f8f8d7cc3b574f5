"""Whether a change still means the same: the script's first steps with and without it, from the same seed.

A change's kind is a promise. What a probe shows is one of the four kinds too, or that the samples changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, sqrt
from statistics import fmean, median, pstdev
from typing import Any

from stoker.changes import ALL, Kind
from stoker.errors import TrialFailed
from stoker.scratch import Limits, run
from stoker.scratch import Plan as ScratchPlan
from stoker.tune.probe import as_argument
from stoker.tune.trial import IDLE_SECONDS
from stoker.tune.weights import Update, agree, differ_in_number, distance, is_mean

_HOOK = "stoker.tune.probe:prepare"
PROBE_STEPS = 40
# Of losses, where seeds change nothing: a small network of convolutions in bfloat16 was 0.00005 off in its
# first 40 steps, and half precision keeps 0.004 of a number.
_ROUNDING = 0.01
# Of differences that drift, one update moves all that come after: they are as many as a quarter at least.
_MOST_ALIKE = 2.0
_ONE_EPOCH = "; no epoch ended in these steps, so later ones were not seen"
# From the mildest to the gravest.
KINDS: tuple[Kind, ...] = ("same", "redraw", "numerics", "optimization")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The first steps of a script: sample ids and a checksum for each batch, and the loss of each update.

    A loss is None where none was seen. Of the first updates, entries of the parameters before and after each,
    and the learning rates in each. `turned`: an epoch ended in these steps, and another began; `late`: with a
    change that may show what it is from there on alone.
    `batch_norm` is the name of a layer that saw parts of batches, where batches were gone through in parts.
    `others` are the same steps of the other ranks, where there are some.
    """

    ids: Sequence[Sequence[Any]]
    batches: Sequence[int]
    losses: Sequence[float | None]
    weights: Sequence[Update] = ()
    rates: Sequence[Sequence[float]] = ()
    turned: bool = True
    late: bool = False
    batch_norm: str | None = None
    others: Sequence["Probe"] = ()

    @property
    def ranks(self) -> Sequence["Probe"]:
        """Of each rank one."""
        return (self, *self.others)


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Of which kind a change showed itself to be, and by what; None where that cannot be told.

    `holds`: it is no graver than it says.
    """

    kind: Kind | None
    by: str
    holds: bool


def take(
    command: Sequence[str],
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    steps: int = PROBE_STEPS,
    most: float = 60.0,
    dropout: bool = True,
    ranks: int = 1,
    offline: bool = False,
) -> Probe:
    """Run a script's first steps aside, seeded; without dropout, which parts of a batch draw otherwise.

    Ended at `most` seconds, or where it makes no step for as long as a trial may not.
    """
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument=as_argument(settings, seed=seed, steps=steps, dropout=dropout, ranks=ranks),
            limits=Limits(seconds=most, idle_seconds=min(IDLE_SECONDS, most), start_seconds=most),
            ranks=ranks,
            offline=offline,
        )
    )
    told = {message.rank: message.body for message in result.messages if message.kind == "probe"}
    if len(told) == ranks:
        first, *others = (told[rank] for rank in range(ranks))
        late = any(ALL[name].late for name in settings)
        return Probe(**first, late=late, others=tuple(Probe(**other, late=late) for other in others))
    said = result.stderr_tail.strip().splitlines() if ranks == 1 else []  # of several, the reason says it
    raise TrialFailed(
        f"the first {steps} steps of {' '.join(command)} could not be looked at "
        f"({result.outcome}: {result.reason})" + (f"; it said: {said[-1]}" if said else "")
        + ". What to do: run it as it stands first, or give it longer"
    )  # fmt: skip


def identical(one: Probe, other: Probe) -> bool:
    """Whether they trained on the same samples and batches, to bit-identical losses, as far as both go.

    Where no loss was seen, to bit-identical weights.
    """
    return not any(
        _differ(*pair)
        for a, b in zip(one.ranks, other.ranks, strict=True)
        for pair in ((a.ids, b.ids), (a.batches, b.batches), (_evidence(a), _evidence(b)))
    )


def judge(kind: Kind, changed: Probe, before: Sequence[Probe], *, by_weights: bool = False) -> Meaning:
    """Hold a change's probe beside those without it: two of the same seed, then some of other seeds.

    The second says what the script does by itself from the same seed, the others how much seeds differ.
    `by_weights`: the weights after the first updates must be the same but for rounding. Of several ranks each
    is held beside itself, and the gravest counts.
    """
    each = [
        _judged(kind, rank, [one.ranks[at] for one in before], by_weights)
        for at, rank in enumerate(changed.ranks)
    ]
    at = max(range(len(each)), key=lambda one: _gravity(each[one][0]))
    found, by = each[at]
    if len(each) > 1:
        by = f"{by} on all {len(each)} ranks" if len(set(each)) == 1 else f"rank {at}: {by}"
    return Meaning(kind=found, by=by, holds=found is not None and KINDS.index(found) <= KINDS.index(kind))


def redraws(one: Probe, other: Probe) -> bool:
    """Whether what was in their batches differs."""
    return any(_differ(a.batches, b.batches) for a, b in zip(one.ranks, other.ranks, strict=True))


def has_batch_norm(probe: Probe) -> bool:
    """Whether a layer that makes the samples of a batch depend on one another saw parts of batches."""
    return any(one.batch_norm is not None for one in probe.ranks)


def _judged(kind: Kind, changed: Probe, before: Sequence[Probe], by_weights: bool) -> tuple[Kind | None, str]:
    """Of one rank."""
    first, again, others = before[0], before[1], before[2:]
    found = _found_in_batches(changed, first, again)
    if found is None:
        found = _found_in_losses(changed, first, again, others)
    elif found[0] == "redraw" and kind == "numerics":  # other draws are no excuse for what rounding does
        in_losses = _found_in_losses(changed, first, again, others)
        found = max(found, in_losses, key=lambda one: _gravity(one[0]))
    is_reordered = bool(_differ(changed.ids, first.ids))
    if not by_weights or found[0] is None or is_reordered:
        return found
    if _differ(changed.losses, first.losses):
        found = _found_by_weights(changed, first, again)
    if changed.batch_norm is not None and found[0] is not None:
        return "optimization", f"{changed.batch_norm} sees a part of a batch, not the batch; {found[1]}"
    return found


def _gravity(kind: Kind | None) -> int:
    return len(KINDS) if kind is None else KINDS.index(kind)


def _found_in_batches(changed: Probe, first: Probe, again: Probe) -> tuple[Kind | None, str] | None:
    """By samples and what is in them; None where neither differs."""
    if _differ(again.ids, first.ids) or _differ(again.batches, first.batches):
        return None, "without the change too, the script trains on other batches in every run"
    if where := _differ(changed.ids, first.ids):
        return "optimization", f"other samples, or in another order, from batch {where} on"
    if where := _differ(changed.batches, first.batches):
        if any(first.ids):
            turn = (
                "" if changed.turned and first.turned else _ONE_EPOCH
            )  # draws may move the next one's order
            return "redraw", f"the same samples in the same order, with other draws inside them{turn}"
        return "optimization", f"batches of other content, from batch {where} on"
    return None


def _found_in_losses(
    changed: Probe, first: Probe, again: Probe, others: Sequence[Probe]
) -> tuple[Kind | None, str]:
    """By losses; by weights where none was seen."""
    if not (_seen(changed) and _seen(first)):
        return _found_without_losses(changed, first, again)
    if not _differ(changed.losses, first.losses):
        turn = _ONE_EPOCH if changed.late and not (changed.turned and first.turned) else ""
        return "same", f"{min(_seen(changed), _seen(first))} losses are bit-identical{turn}"
    if where := _differ(*([loss is None for loss in one.losses] for one in (changed, first))):
        return "optimization", f"what goes backward for update {where} is seen with or without it alone"
    if not _all_finite(changed):
        return "optimization", "a loss is not finite"
    off, by_itself = _distance(changed, first), _distance(again, first)
    told = f"losses differ by {off:.2g} of their size"
    if off <= 2 * by_itself:
        return "same", f"{told}, and from run to run by {by_itself:.2g}"
    noise = median(_distance(other, first) for other in others) if others else 0.0
    told += f", from seed to seed by {noise:.2g}" if others else ""
    if others and noise <= 2 * by_itself:
        noise = _ROUNDING
        told += f": seeds change nothing in it, so up to {noise:g} is taken for rounding"
    bias, chance = _bias(changed, first)
    if off <= noise and abs(bias) > chance:
        return "optimization", f"{told}; they are {bias:+.2g} off in the mean, beyond {chance:.2g} of chance"
    return ("numerics" if off <= noise else "optimization"), told


def _found_without_losses(changed: Probe, first: Probe, again: Probe) -> tuple[Kind | None, str]:
    if not all(_moved(one) for one in (changed, first)):
        return None, "no loss was seen, and no weight that was moved: nothing shows what it does"
    told = f"no loss was seen; weights after {min(len(changed.weights), len(first.weights))} updates are"
    if not _differ(changed.weights, first.weights):
        return "same", f"{told} bit-identical"
    if where := differ_in_number(changed.weights, first.weights):
        return None, f"update {where} is of other parameters than without it, so they cannot be compared"
    off, by_itself = distance(changed.weights, first.weights), distance(again.weights, first.weights)
    told += f" {off:.2g} of an update apart"
    if off <= 2 * by_itself < inf:
        return "same", f"{told}, and from run to run {by_itself:.2g}"
    return ("numerics" if agree(off, by_itself) else "optimization"), told


def _found_by_weights(changed: Probe, first: Probe, again: Probe) -> tuple[Kind | None, str]:
    if not _all_finite(changed):
        return None, "a loss is not finite"
    updates = min(len(changed.weights), len(first.weights))
    losses = list(zip(changed.losses, first.losses, strict=False))[: max(1, updates)]
    for at, (together, whole) in enumerate(losses, 1):
        if together is None or whole is None:
            return None, f"the loss of update {at} was not seen: it may be no mean over samples"
        if not is_mean(together, whole):
            return None, (
                f"the loss of update {at} is {whole:.3g}, and {together:.3g} put together from its "
                "parts: it is no mean over samples"
            )
    if where := _differ(changed.rates, first.rates):
        return None, f"other learning rates from update {where} on: the loop sets them by counting batches"
    if where := differ_in_number(changed.weights, first.weights):
        return None, f"update {where} is of other parameters than without it, so they cannot be compared"
    off, by_itself = distance(changed.weights, first.weights), distance(again.weights, first.weights)
    told = f"weights after {updates} updates are {off:.2g} of an update apart"
    return ("numerics" if agree(off, by_itself) else "optimization"), told


def _differ(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The first place, counted from 1, at which they differ, as far as both go; 0 where they do not."""
    for at, (a, b) in enumerate(zip(one, other, strict=False), 1):
        if a != b:
            return at
    return 0


def _seen(probe: Probe) -> int:
    """How many losses were."""
    return sum(loss is not None for loss in probe.losses)


def _all_finite(probe: Probe) -> bool:
    return all(isfinite(loss) for loss in probe.losses if loss is not None)


def _moved(probe: Probe) -> bool:
    return any(before != after for before, after in probe.weights)


def _evidence(probe: Probe) -> Sequence[Any]:
    return probe.losses if _seen(probe) else probe.weights


def _distance(one: Probe, other: Probe) -> float:
    each = _differences(one, other)
    return fmean(abs(off) for off in each) if each else 0.0


def _bias(one: Probe, other: Probe) -> tuple[float, float]:
    """How far losses are off in the mean, to one side, and how far rounding or chance may bring them.

    Of the same batches chance is not what seeds differ by, which may be 20% of a loss: it is three
    standard errors of the differences, which one in 370 is beyond, and more where neighbours are alike.
    """
    each = _differences(one, other)
    if not each:
        return 0.0, _ROUNDING
    mean = fmean(each)
    spread = pstdev(each, mean)
    if not spread:
        return mean, _ROUNDING
    beside = fmean((a - mean) * (b - mean) for a, b in pairwise(each)) / spread**2
    wider = min(_MOST_ALIKE, sqrt((1 + beside) / (1 - beside))) if 0 < beside < 1 else 1.0
    return mean, max(_ROUNDING, 3 * wider * spread / sqrt(len(each)))


def _differences(one: Probe, other: Probe) -> list[float]:
    """Of each pair of losses, of their size, with its sign."""
    pairs = zip(one.losses, other.losses, strict=False)
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [(a - b) / (abs(a) + abs(b) or 1.0) * 2 for a, b in both]
