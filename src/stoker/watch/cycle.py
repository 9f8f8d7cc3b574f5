"""Which update ends a step, when several optimizers take turns. Pure: no clocks, no torch.

A step ends at the update of the optimizer that steps last in each cycle: with D D G D D G the step
is D D G. A cycle begins where the first optimizer steps again after another one has. An optimizer
that exists but does not step must not hold the steps back for ever, hence the patience.
"""

from typing import Generic, TypeVar

PART = TypeVar("PART")
# Updates of the first optimizer to wait for another one's turn. WGAN's usual 5 critic updates and
# SAC's 2:1 lie far below; a discriminator that is updated more rarely than this is a step apart.
PATIENCE = 64


class Cycle(Generic[PART]):
    """Groups parts, each ended by one optimizer's update, into steps.

    >>> cycle = Cycle[str](); cycle.expect(2)
    >>> [cycle.add(who, who.lower()) for who in "DGDG"]
    [[], [], [['d', 'g']], []]
    """

    def __init__(self) -> None:
        self._parts: list[PART] = []
        self._first: int | str | None = None
        self._others_stepped = False
        self._alone = True
        self._expected = 1

    def expect(self, optimizers: int) -> None:
        """How many optimizers exist: with more than one, the first waits for the others' turn."""
        if optimizers > self._expected:
            self._expected = optimizers
            self._alone = False

    def add(self, optimizer: int | str, part: PART) -> list[list[PART]]:
        """Add the part that an update has just ended; return the steps that this completes."""
        if self._first is None:
            self._first = optimizer
        done: list[list[PART]] = []
        if optimizer != self._first:
            self._others_stepped = True
            self._alone = False
            self._expected = max(2, self._expected)
        elif self._others_stepped:
            done, self._parts, self._others_stepped = [self._parts], [], False
        elif self._alone or len(self._parts) >= PATIENCE:
            done, self._parts, self._alone = [[part] for part in self._parts], [], True
        if self._expected == 1:
            return [*done, [part]]  # no other to wait for: a killed run keeps its last step
        self._parts.append(part)
        return done

    def flush(self) -> list[list[PART]]:
        """The run has ended: what is held is complete."""
        parts, self._parts = self._parts, []
        if not parts:
            return []
        return [parts] if self._others_stepped else [[part] for part in parts]
