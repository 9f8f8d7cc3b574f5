"""The loaders of a run, the draws made from them, and whether those draws reach a step.

Only loaders whose batches reach a step count as `wait`. A draw is validation's when gradients are
off as it is made, when the model then runs with gradients off, or when the loop comes back for more
after a forward without a backward. Until a backward has settled it, a draw is open, and goes with
what its loader's draws have been so far.
"""

import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Fate(Enum):
    """What became of a draw."""

    OPEN = 0
    FED = 1
    EVALUATED = 2


# An enum's member costs a look-up each time; these are on the path of every step.
_OPEN, _FED = Fate.OPEN, Fate.FED


@dataclass(slots=True, eq=False)
class Loader:
    """A loader that was drawn from."""

    id: int
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    length: int | None = None
    fed: int = 0
    evaluated: int = 0
    drawn: int = 0
    epochs: int = 0
    background: bool = False
    startup: bool = False
    workers: tuple[int, ...] = ()
    last: "Draw | None" = None

    @property
    def trains(self) -> bool:
        """Whether its batches reach steps, by what became of those that are settled."""
        return self.fed >= self.evaluated


@dataclass(slots=True, eq=False)
class Draw:
    """One `next()` (or `iter()`) on a loader, and the time that it took the training thread."""

    loader: Loader
    startup: bool = False
    background: bool = False
    ns: int = 0
    samples: int | None = None
    fate: Fate = _OPEN
    forward_seen: bool = False

    @property
    def waits(self) -> bool:
        """Whether the time in it was spent waiting for a batch that reaches a step."""
        if self.fate is _OPEN:
            return self.loader.trains
        return self.fate is _FED


class Loaders:
    """All loaders of a run, by identity, and the draws whose fate is open."""

    def __init__(self) -> None:
        self.all: list[Loader] = []
        self._by_key: dict[int, tuple[weakref.ref[Any] | None, Loader]] = {}
        self.open: list[Draw] = []
        self.newest: Loader | None = None
        self.answered: Draw | None = None

    def of(self, source: Any) -> Loader:
        """The entry for a loader object, made when it is first seen."""
        known = self._by_key.get(id(source))
        if known is not None and (known[0] is None or known[0]() is source):
            return known[1]
        try:
            ref = weakref.ref(source)
        except TypeError:  # a generator's or C object's identity is all there is
            ref = None
        loader = self._successor(_name_of(source), _settings_of(source))
        self._by_key[id(source)] = (ref, loader)
        return loader

    def _successor(self, name: str, settings: dict[str, Any]) -> Loader:
        """The entry of one like it that is gone (made anew every epoch, it is one loader), or a new one."""
        for key, (ref, loader) in self._by_key.items():
            gone = ref is not None and ref() is None
            if gone and settings and (loader.name, loader.settings) == (name, settings):
                del self._by_key[key]
                return loader
        loader = Loader(id=len(self.all), name=name, settings=settings)
        self.all.append(loader)
        return loader

    def draw(self, loader: Loader, *, background: bool, evaluating: bool) -> Draw:
        """A `next()` begins."""
        last = loader.last
        if last is not None and last.forward_seen and last.fate is _OPEN:
            self.settle_as_evaluated(last)  # back for more after a forward without a backward
        draw = Draw(loader, startup=loader.startup, background=background)
        if evaluating:
            draw.fate = Fate.EVALUATED
            loader.evaluated += 1
        if background:
            loader.background = True
        return draw

    def drawn(self, draw: Draw, samples: int | None) -> None:
        """The `next()` gave a batch."""
        loader = draw.loader
        draw.samples = samples
        loader.startup = False
        loader.drawn += 1
        loader.last = draw
        self.newest = loader
        self.answered = None
        if draw.fate is _OPEN:
            self.open.append(draw)

    def forward_without_gradients(self) -> None:
        """The model ran for its answer alone: on what is next of the loader that was drawn from last."""
        for draw in self.open:
            if draw.loader is self.newest:
                self.settle_as_evaluated(draw)
                self.answered = draw
                return

    def forward(self) -> None:
        """The model ran with gradients on."""
        answered = self.answered
        if answered is not None:
            self.answered = None
            if all(draw.loader is answered.loader for draw in self.open):
                # First for its answer, then to train on the same batch: self-distillation, target networks.
                answered.fate = _OPEN
                answered.loader.evaluated -= 1
                self.open.insert(0, answered)
        for draw in self.open:
            draw.forward_seen = True

    def backward(self) -> None:
        """What was drawn has reached a step."""
        for draw in self.open:
            draw.fate = _FED
            draw.loader.fed += 1
        self.open.clear()

    def settle_as_evaluated(self, draw: Draw) -> None:
        """The batch was for its answer alone."""
        draw.fate = Fate.EVALUATED
        draw.loader.evaluated += 1
        if draw in self.open:
            self.open.remove(draw)


def _name_of(source: Any) -> str:
    dataset = getattr(source, "dataset", None)
    kind = type(source).__name__
    return kind if dataset is None else f"{kind}({type(dataset).__name__})"


def _settings_of(source: Any) -> dict[str, Any]:
    """What a DataLoader was given; empty for anything else."""
    if getattr(source, "dataset", None) is None or not hasattr(source, "num_workers"):
        return {}
    context = getattr(source, "multiprocessing_context", None)
    start = getattr(context, "_name", None) or (type(context).__name__ if context is not None else None)
    kept = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "drop_last")
    settings = {name: getattr(source, name, None) for name in kept}
    settings["in_order"] = getattr(source, "in_order", None)
    settings["start_method"] = start
    settings["dataset"] = type(source.dataset).__qualname__
    return settings
