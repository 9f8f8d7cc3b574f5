"""Changes held to their kinds in a search: what each is probed beside, and what of that is there already."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.changes import ALL, Kind
from stoker.tune.meaning import KINDS, Meaning, Probe, has_batch_norm, identical, judge, redraws

# With these settings, from this seed, and with what the script drops at random or without.
TakeProbe = Callable[[Mapping[str, Any], int, bool], Probe]
# Of the probes without a change: twice the same, to know what the script does by itself; and others, where
# losses may differ as much as they do from seed to seed.
_SEEDS: Mapping[Kind, Sequence[int]] = {
    "same": (0, 0),
    "redraw": (0, 0),
    "numerics": (0, 0, 1, 2),
    "optimization": (0, 0),
}


@dataclass
class Checks:
    """Checks changes one after the other; each that holds is kept, and the next is over it.

    They are probed beside the script as it is, until one is kept with which draws differ, or parts of a batch
    make the updates; then beside that one. Beside other draws no loss says what a later change does; and what
    rounds otherwise is not to make the weights that a script in float32 makes of whole batches.
    """

    probe: TakeProbe
    kinds: frozenset[Kind]
    # Seconds of the last probe.
    took: float | None = None
    _base: Mapping[str, Any] = field(default_factory=dict)
    # With dropout, or without.
    _probes: dict[bool, list[Probe]] = field(default_factory=dict)

    def check(self, settings: Mapping[str, Any]) -> Meaning:
        """What the changes in these settings mean, beyond those that were looked at before."""
        gravest, by_weights = self._gravest(settings), self._is_by_weights(settings)
        dropout = not by_weights
        allowed = "redraw" if gravest == "same" and "redraw" in self.kinds else gravest
        before = self._probes.setdefault(dropout, [])
        if not before:
            before.append(self._take(self._base, 0, dropout))
        changed = self._take(settings, 0, dropout)
        seeds = _SEEDS[allowed]
        if identical(changed, before[0]):
            seeds = (0,)  # what the script does by itself, and from seed to seed, decides nothing then
        before += [self._take(self._base, seed, dropout) for seed in seeds[len(before) :]]
        if by_weights and has_batch_norm(changed) and "optimization" in self.kinds:
            allowed = "optimization"  # it is that with such a layer alone, and asked for
        beside = before if len(before) > 1 else before * 2
        meaning = judge(allowed, changed, beside, by_weights=by_weights)
        if meaning.holds and (by_weights or redraws(changed, before[0])):
            self._base, self._probes = dict(settings), {dropout: [changed]}
        return meaning

    def missing(self, settings: Mapping[str, Any]) -> int:
        """How many probes a check takes; of what is to leave all the same no second one without it."""
        gravest = self._gravest(settings)
        without = 1 if gravest == "same" else len(_SEEDS[gravest])
        known = self._probes.get(not self._is_by_weights(settings), ())
        return 1 + max(0, without - len(known))

    def _gravest(self, settings: Mapping[str, Any]) -> Kind:
        """Of all beside what they are probed beside: what is in that has shown its own kind already."""
        return max((ALL[name].kind for name in self._beyond(settings)), key=KINDS.index, default="same")

    def _is_by_weights(self, settings: Mapping[str, Any]) -> bool:
        """Whether weights are to be compared: without dropout, which parts of a batch draw otherwise."""
        return any(ALL[name].check == "weights" for name in self._beyond(settings))

    def _beyond(self, settings: Mapping[str, Any]) -> set[str]:
        """The changes that are not in what these settings are probed beside."""
        return {name for name, value in settings.items() if self._base.get(name) != value}

    def _take(self, settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        began = time.monotonic()
        found = self.probe(settings, seed, dropout)
        self.took = time.monotonic() - began
        return found
