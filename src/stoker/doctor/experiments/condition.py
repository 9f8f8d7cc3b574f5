"""Some of the loop's own steps under a condition, timed: what the experiments after the drain are made of.

A condition begins and ends at the end of a step, with the device settled, so that its steps hold all the work
that they launched. No step is made for its sake: where the script ends first, what is missing is not told.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

# As it is now: an experiment may stand in its place later.
_synchronize = torch.cuda.synchronize


class Handing(Protocol):
    """What has batches to hand out."""

    def next(self) -> Any:
        """The next one."""


class Condition:
    """Something switched for some steps. What `tell` is given is the time of one of them.

    The first `warm` steps are not timed; of the rest there are `steps`, or fewer where `most` seconds are
    over.
    """

    warm = 3
    steps = 16
    most = 1.0
    held: Handing | None = None
    """Batches to hand out in place of the loader's own."""

    def enter(self) -> None:
        """It begins: the next step is the first under it."""

    def begin(self) -> None:
        """The timed steps begin."""

    def settle(self) -> None:
        """Wait until the device has done all that was launched."""
        if torch.cuda.is_initialized():
            _synchronize()

    def leave(self) -> None:
        """It is over: all is as it was."""

    def tell(self, seconds: float, steps: int) -> None:
        """A step took so long, in the mean of so many."""


class Conditions:
    """Goes through them, one after the other, at the loop's own steps.

    They come from an iterator, so that which is next may depend on what those before it told.
    """

    def __init__(
        self, conditions: Iterator[Condition], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._conditions, self._clock = conditions, clock
        self._now: Condition | None = None
        self._made = 0
        self._entered = self._began = 0.0

    def start(self) -> bool:
        """Enter the first. False where there is none."""
        return self._enter_next()

    @property
    def held(self) -> Handing | None:
        """Batches to hand out now; None for the loader's own."""
        return None if self._now is None else self._now.held

    def stepped(self) -> bool:
        """A step has ended. False when all are over."""
        condition = self._now
        if condition is None:
            return False
        self._made += 1
        timed = self._made - condition.warm
        if timed < 0 and self._clock() - self._entered < condition.most:
            return True
        if timed <= 0:  # warm enough, or too slow to be warmed for longer
            self._made = condition.warm
            self._begin()
            return True
        if timed < condition.steps and self._clock() - self._began < condition.most:
            return True
        condition.settle()
        seconds = (self._clock() - self._began) / timed
        condition.leave()
        condition.tell(seconds, timed)
        return self._enter_next()

    def _begin(self) -> None:
        assert self._now is not None
        self._now.settle()
        self._now.begin()
        self._began = self._clock()

    def _enter_next(self) -> bool:
        self._now = next(self._conditions, None)
        self._made = 0
        if self._now is None:
            return False
        self._now.enter()
        self._entered = self._clock()
        if not self._now.warm:
            self._begin()
        return True
