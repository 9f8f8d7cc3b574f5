"""Workspaces that libraries choose by the size of a batch, from calls that ran alone at it. Pure.

cuDNN has many kernels for a convolution, and takes another one, with another workspace, where the batch is
larger: what it takes is no line, and 0.1% more of it can move a peak by 15%, where it no longer fits a block
that is free. But it is the same for a call that runs alone as for one in a whole step (a 3D U-Net on an H200:
at each of 10 sizes from 6 to 96, forward and backward), and that costs milliseconds and the memory of one
layer. So a workspace of a run is known at another size where a call took just the same at the sizes that ran.
Nothing is concluded from a call that did not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stoker.doctor.skeleton import Place, Taken, parts_of

# Smaller ones come from segments that all share: what they are does not matter.
LARGE = 1 << 20
_Known = tuple[tuple[int, Place], ...]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A call, in words, with what it allocated and freed where it ran alone, by the samples of the batch."""

    call: str
    events: Mapping[int, tuple[int, ...]]

    @cached_property
    def places(self) -> tuple[Mapping[int, Place], ...]:
        """Those at which it took a workspace at some size, by samples.

        Sizes at which it did other things than at the first are left out.
        """
        parts = {samples: parts_of(events, {}) for samples, events in self.events.items()}
        first = next(iter(parts.values()), None)
        if first is None:
            return ()
        alike = {samples: one for samples, one in parts.items() if one.do_match(first)}
        found = [
            {samples: one.place(at) for samples, one in alike.items()} for at in range(len(first.workspaces))
        ]
        return tuple(places for places in found if any(place.taken for place in places.values()))


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """What the calls of a step take, by those of them that ran alone."""

    calls: tuple[Probed, ...] = ()
    _known: dict[tuple[_Known, int], tuple[Taken, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of the batches at which all of the calls ran."""
        ran = [set(call.events) for call in self.calls]
        return tuple(sorted(set.intersection(*ran))) if ran else ()

    def options(self, known: _Known, samples: int) -> tuple[Taken, ...]:
        """What may be taken with so many samples at a place that is known of runs, each with its own samples.

        One where a call, or several that are alike, took just the same in the runs; none where no call did.
        """
        if (known, samples) not in self._known:
            self._known[known, samples] = self._look_up(known, samples)
        return self._known[known, samples]

    def lacking(self, ran: Sequence[int], samples: int) -> int:
        """Bytes of the largest that is taken with so many samples, of those for which no run has a place."""
        found = [
            sum(places[samples].taken)
            for places in self._places
            if samples in places and not any(places[size].taken for size in ran if size in places)
        ]
        return max(found, default=0)

    def unlike(self, runs: Mapping[int, Sequence[Taken]]) -> tuple[str, ...]:
        """What runs, by their samples, do not have in common with calls that ran alone with as many."""
        found = []
        for samples, took in runs.items():
            alone = [
                (places[samples].taken, call.call)
                for call in self.calls
                for places in call.places
                if samples in places
            ]
            known = {taken for taken, _ in alone}
            found += [
                f"alone, with {samples} samples, {call} takes {_words(taken)}: the run did not"
                for taken, call in alone
                if sum(taken) >= LARGE and taken not in took
            ]
            found += [
                f"with {samples} samples the run took {_words(taken)}: no call did alone"
                for taken in dict.fromkeys(took)
                if sum(taken) >= LARGE and known and taken not in known
            ]
        return tuple(found)

    @cached_property
    def _places(self) -> tuple[Mapping[int, Place], ...]:
        return tuple(places for call in self.calls for places in call.places)

    def _look_up(self, known: _Known, samples: int) -> tuple[Taken, ...]:
        same = [
            places
            for places in self._places
            if samples in places
            and all(size in places and places[size].taken == place.taken for size, place in known)
        ]
        # A forward and a backward call may take the same here and not there: they lie between other tensors.
        between = [places for places in same if all(places[size].is_like(place) for size, place in known)]
        return tuple(sorted({places[samples].taken for places in between or same}))


def _words(taken: Taken) -> str:
    return f"{' and '.join(map(str, taken))} bytes"
