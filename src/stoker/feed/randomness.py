"""Whether a dataset gives the same sample each time: what is random must not be cached as it stands.

Nor must what a collate_fn draws, or makes of several samples together (mixup, padding to the longest).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import NotPackable, UsageError
from stoker.feed.generators import kept_generators, tell_states
from stoker.feed.layout import Layout
from stoker.feed.sample_digest import digest, walk
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.torch import TorchSource, find_epoch_name

# A change with p = 0.05 shows in 70 samples read twice with 99.9% (one read of the two differs in 9.5%).
SAMPLES = 70
# So many samples are held at once.
_TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What reading twice has shown."""

    random: bool
    """Whether the samples differ from read to read, or may: a draw was made, or they cannot be compared."""
    why: str
    """What was seen, in a sentence."""
    samples: int
    """How many reads were compared with another of the same sample, at most."""
    epoch: str | None
    """The name by which the dataset is told the epoch: its samples may change with it. None: it has none."""

    @property
    def cacheable(self) -> bool:
        """Whether samples can be kept without asking: nothing random was seen, and no epoch is known."""
        return not self.random and self.epoch is None


def find_randomness(dataset: Any, *, samples: int = SAMPLES, seed: int = 0) -> Verdict:
    """Read samples twice, and say whether they are random.

    They are when a bit differs, or when a read drew from torch's, numpy's or random's own generator, whatever
    it returned. Those generators are put back, so the run that follows draws what it would have drawn. A set
    smaller than `samples` is read more than twice, so that a rare change is found in it too.

    Drawn on a device, by a generator there, a change is found by its values alone.
    """
    if samples < 1:
        raise UsageError(f"samples is {samples}: at least 1 must be read, and {SAMPLES} find p = 0.05")
    source = dataset if isinstance(dataset, Source) else TorchSource(dataset)
    epoch = find_epoch_name(source)
    if not len(source):
        return Verdict(random=False, why="there are no samples", samples=0, epoch=epoch)
    drawn = np.random.default_rng(seed).choice(len(source), min(samples, len(source)), replace=False)
    chosen = np.resize(drawn, samples).astype(np.int64)
    with kept_generators():
        # Backwards the second time: were a cache to answer a read right after the first, or samples to share
        # one buffer, the two would look the same.
        seen = _find_change(source, [chosen, chosen[::-1]])
    if seen is not None:
        return Verdict(random=True, why=seen, samples=samples, epoch=epoch)
    told = f"{len(drawn)} samples were the same, bit by bit, when read again"
    if epoch is not None:
        told += f"; but the dataset has {epoch!r}, so they may change with the epoch"
    return Verdict(random=False, why=told, samples=samples, epoch=epoch)


def find_mixing(source: TorchSource) -> str | None:
    """Why what the collate_fn makes of a sample is not that sample's alone; None where it is.

    Some samples are put into one batch, and each into batches of its own. NotPackable where batches cannot be
    laid out, or are not alike.
    """
    if not source.collates or not len(source):
        return None
    numbers = np.linspace(0, len(source) - 1, min(_TOGETHER, len(source))).astype(np.int64).tolist()
    with kept_generators():
        samples = source.__getitems__(numbers)
        before = tell_states()
        batch = _collated(source, list(samples))
        drawn = _drawn_since(before)
        if drawn is not None:
            return f"the collate_fn draws from {drawn}'s random generator"
        layout = Layout.of(batch)
        together = layout.flatten(batch)
        if len(together[0]) != len(samples):
            return f"the collate_fn makes {len(together[0])} rows of {len(samples)} samples"
        for place in np.resize(np.arange(len(samples)), SAMPLES).tolist():
            alone = layout.flatten(_collated(source, [samples[place]]))
            if any(digest(one[0]) != digest(row[place]) for one, row in zip(alone, together, strict=True)):
                return f"the collate_fn makes something else of sample {numbers[place]} beside other samples"
    return None


def _collated(source: TorchSource, samples: list[Any]) -> Any:
    try:
        return source.collated(samples)
    except Exception as error:  # a script's own code, which may need batches of its own size
        raise NotPackable(
            f"the collate_fn makes no batch of {len(samples)} samples: {type(error).__name__}: {error}"
        ) from error


def _drawn_since(before: Mapping[str, bytes]) -> str | None:
    """The first of the generators that is no longer in the state that it was in."""
    return next((name for name, state in tell_states().items() if state != before[name]), None)


def _find_change(source: Source, passes: Iterable[Indices]) -> str | None:
    """The first thing seen that makes the samples random; None when there is none."""
    known: dict[int, dict[str, bytes]] = {}
    for numbers in passes:
        for begin in range(0, len(numbers), _TOGETHER):
            together = numbers[begin : begin + _TOGETHER].tolist()
            before = tell_states()
            found = source.__getitems__(together)
            drawn = _drawn_since(before)
            if drawn is not None:
                return f"reading a sample draws from {drawn}'s random generator"
            for number, sample in zip(together, found, strict=True):
                change = _compare(number, sample, known)
                if change is not None:
                    return change
    return None


def _compare(number: int, sample: Any, known: dict[int, dict[str, bytes]]) -> str | None:
    """What differs between a sample and the first read of it, which becomes known."""
    bits: dict[str, bytes] = {}
    for path, value in walk(sample):
        try:
            bits[path] = digest(value)
        except TypeError as error:
            return f"{path} in sample {number} cannot be compared: {error}"
    first = known.setdefault(number, bits)
    differing = [path for path in {**first, **bits} if first.get(path) != bits.get(path)]
    return f"sample {number} differed on a second read, in {', '.join(differing[:3])}" if differing else None
