"""A look at a dataset before its first epoch: what its samples are made of, and whether they can be held.

It is taken where the samples are read. A file that a dataset opens at its first read must not be open in the
loop's process when workers are forked from it: they would share one place in it, and read each other's
records. Nor could such a dataset be sent to a worker that is spawned.
"""

import copy
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from stoker.errors import NotPackable
from stoker.feed.generators import kept_generators
from stoker.feed.layout import Layout
from stoker.feed.prefetch import Workers
from stoker.feed.randomness import find_mixing, find_randomness
from stoker.feed.sample_form import SampleForm
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.torch import TorchSource

Seen = TypeVar("Seen")
# Looked at for whether they are alike.
_ALIKE = 16


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen of a dataset: a layout and what it is told by, or why its samples cannot be held."""

    layout: Layout | None
    unheld: str
    fingerprint: str | None = None
    kept_as: str | None = None
    form: SampleForm | None = None


def find_layout(source: Source, some: Indices, cache_random: bool) -> tuple[Layout | None, str]:
    """The layout of the samples, by `some` of them; or None, and why they cannot be held."""
    if source.user_made and not cache_random:
        verdict = find_randomness(source)
        if not verdict.cacheable:
            return None, (
                f"{verdict.why}. To hold them, move what is random to transform=, which runs by the "
                "batch after the cache; or give cache_random=True to keep each sample as first read"
            )
    try:
        if isinstance(source, TorchSource) and not cache_random:
            mixed = find_mixing(source)
            if mixed is not None:
                return None, f"{mixed}. To hold them, move that to transform=, which runs after the cache"
        return _lay_out(source, some), ""
    except NotPackable as error:
        return None, str(error)


def some_of(numbers: Indices | None, length: int) -> Indices:
    """A few of the samples that are used, the first of them among these; None for all of so many."""
    used = length if numbers is None else len(numbers)
    places = np.linspace(0, used - 1, min(_ALIKE, used)).astype(np.int64)
    return places if numbers is None else numbers[places]


def _lay_out(source: Source, some: Indices) -> Layout:
    """The layout of the first; NotPackable where one of the others has another.

    Only of samples that are the user's own making, and by batches of one, which is how a loader may hand out
    samples of many shapes. What a collate_fn makes of a sample alone `find_mixing` looks at.
    """
    with kept_generators():
        layout = Layout.of(source.read(some[:1]))
        if source.user_made and not (isinstance(source, TorchSource) and source.collates):
            for at in range(1, len(some)):
                layout.flatten(source.read(some[at : at + 1]), 1)
    return layout


def look_closely(source: TorchSource, *, some: Indices, cache_random: bool, told: bool) -> Look:
    """The layout, and what held samples are kept as; `told`: the fingerprint in any case."""
    layout, unheld = find_layout(source, some, cache_random)
    return Look(
        layout=layout,
        unheld=unheld,
        kept_as=None if layout is None else source.kept_as(),
        fingerprint=source.fingerprint() if told or layout is not None else None,
    )


def look_elsewhere(
    source: TorchSource, look: Callable[[TorchSource], Seen], *, seed: int = 0, **options: Any
) -> Seen:
    """What `look` sees in a worker, which is started as readers are and ends with it.

    What it raises there is raised here. `options` are a DataLoader's, as those of `Workers`.
    """
    doing = "while samples were looked at, before they are read"
    workers = Workers(Looking(source, look), workers=1, ahead=1, pin=False, seed=seed, doing=doing, **options)
    try:
        [seen] = workers.read([np.zeros(1, np.int64)])
    finally:
        workers.close()
    if isinstance(seen, _Raised):
        raise seen.error from _There(seen.told)
    return seen  # type: ignore[no-any-return]


class Looking:
    """What a worker reads is a look at a source."""

    def __init__(self, source: TorchSource, look: Callable[[TorchSource], Any]) -> None:
        self.source, self._look = source, look

    def read(self, _: Indices) -> Any:
        """The look, or what it raised."""
        try:
            return self._look(self.source)
        except Exception as error:
            if not _travels(error):
                raise  # as torch tells it: with the traceback as its words
            return _Raised(error, traceback.format_exc())


@dataclass(frozen=True)
class _Raised:
    error: Exception
    told: str


class _There(Exception):
    """The traceback of an error in the worker that raised it."""

    def __str__(self) -> str:
        return f"in the worker that looked:\n{self.args[0]}"


def _travels(error: Exception) -> bool:
    """Whether an error comes out of another process as it went in: built anew there as a copy is here."""
    try:
        pickle.dumps(error)
        back = copy.copy(error)
    except Exception:  # noqa: BLE001  (of a class of the user's: then it cannot)
        return False
    return type(back) is type(error) and str(back) == str(error)
