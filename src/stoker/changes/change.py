"""What a change is: one setting of a training run altered, without a line of the script edited."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stoker.errors import UsageError

# What it does to the maths.
# same: the same samples in the same order, bit-identical losses. redraw: random draws inside samples differ.
# numerics: other rounding. optimization: other batches, or in another order.
Kind = Literal["same", "redraw", "numerics", "optimization"]


class Values(Protocol):
    """What a change's value may be."""

    def of(self, given: object) -> Any:
        """The value; ValueError, with what it may be, where it is none."""


@dataclass(frozen=True)
class Whole:
    """A whole number in a range."""

    least: int
    most: int

    def of(self, given: object) -> int:
        """The number."""
        if isinstance(given, bool) or not isinstance(given, int) or not self.least <= given <= self.most:
            raise ValueError(f"a whole number from {self.least} to {self.most}")
        return given


@dataclass(frozen=True)
class Switch:
    """On or off."""

    def of(self, given: object) -> bool:
        """Whether it is on."""
        if not isinstance(given, bool):
            raise ValueError("true or false")
        return given


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def of(self, given: object) -> str:
        """The word."""
        if given not in self.words:
            raise ValueError(f"one of {', '.join(self.words)}")
        return str(given)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One setting.

    `of` is what it alters. `apply` puts a value in place in this process, before the script begins. `lacks`
    says why that cannot be done on this machine, where it cannot. `backfires` is how it can make a run
    slower, or wrong. `told` says what it met in the script, where that is neither loaders nor models.
    `check` is what a probe compares: losses, or weights after the first updates. `late`: what it does may
    show from the second epoch on alone.
    """

    id: str
    of: Literal["loader", "model", "update", "process"]
    text: str
    kind: Kind
    values: Values
    apply: Callable[[Any], None]
    lacks: Callable[[Any], str | None] = lambda value: None
    backfires: str = ""
    told: Callable[[Any], Sequence[str]] = lambda value: ()
    check: Literal["losses", "weights"] = "losses"
    late: bool = False

    def value(self, given: object) -> Any:
        """The value that is meant."""
        try:
            return self.values.of(given)
        except ValueError as error:
            raise UsageError(f"change {self.id} = {given!r}: give {error}") from None
