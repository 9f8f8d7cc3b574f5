"""The loaders of a run, the draws made from them, and whether those draws reach a step.

Only loaders whose batches reach a step count as `wait`. A draw is validation's when gradients are
off as it is made, when the model then runs with gradients off, or when the loop comes back for more
after a forward without a backward. Until a backward has settled it, a draw is open, and goes with
what its loader's draws have been so far.
"""

from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What became of a draw."""

    OPEN = 0
    FED = 1
    EVALUATED = 2


# An enum's member costs a look-up each time; these are on the path of every step.
_OPEN, _FED = Fate.OPEN, Fate.FED


@dataclass(slots=True, eq=False)
class Loader:
    """A loader that was drawn from, by what became of its draws."""

    id: int
    fed: int = 0
    evaluated: int = 0
    drawn: int = 0
    epochs: int = 0
    background: bool = False
    startup: bool = False
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


class Loaders(list[Loader]):
    """All loaders of a run, by their ids, and the draws whose fate is open."""

    def __init__(self) -> None:
        self.open: list[Draw] = []
        self.newest: Loader | None = None
        self.answered: Draw | None = None

    def know(self, count: int) -> None:
        """There are so many."""
        self.extend(Loader(number) for number in range(len(self), count))

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
