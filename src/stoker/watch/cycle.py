"""Which update ends a step, when several optimizers take turns. Pure: no clocks, no torch.

A step ends at the update of the optimizer that steps last in each cycle: with D D G D D G the step
is D D G. A cycle begins where the first optimizer steps again after another one has. An optimizer
that exists but steps no more (a second training in one script, a part that is frozen later) must not
hold the steps back: then another one takes the first's place.
"""

from typing import Generic, TypeVar

PART = TypeVar("PART")
# Updates to wait for another optimizer's turn. WGAN's usual 5 critic updates and SAC's 2:1 lie far
# below; an optimizer that is used more rarely than this makes steps of its own.
PATIENCE = 64


class Cycle(Generic[PART]):
    """Groups parts, each ended by one optimizer's update, into steps.

    >>> cycle = Cycle[str](); cycle.expect(2)
    >>> [cycle.add(who, who.lower()) for who in "DGDG"]
    [[], [], [['d', 'g']], []]
    """

    def __init__(self) -> None:
        self._held: list[tuple[int | str, PART]] = []
        self._first: int | str | None = None
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
        if optimizer != self._first:
            self._expected = max(2, self._expected)
        elif self._expected == 1:
            return [[part]]  # no other to wait for: a killed run keeps its last step
        done = self._completed_by(optimizer)
        self._held.append((optimizer, part))
        return done

    def flush(self) -> list[list[PART]]:
        """The run has ended: what is held is complete."""
        return self._take(as_one=len(self._holders()) > 1)

    def _completed_by(self, optimizer: int | str) -> list[list[PART]]:
        """What is held and complete now that this optimizer is about to be added."""
        holders = self._holders()
        if len(self._held) >= PATIENCE:
            self._first, self._alone = optimizer, len(holders) == 1
            return self._take(as_one=False)
        if optimizer != self._first:
            self._alone = False
            if self._first not in holders and optimizer in holders:
                self._first = optimizer  # the first one steps no more
                return self._take(as_one=len(holders) > 1)
            return []
        if self._alone or holders - {optimizer}:
            return self._take(as_one=not self._alone)
        return []

    def _holders(self) -> set[int | str]:
        return {optimizer for optimizer, _ in self._held}

    def _take(self, *, as_one: bool) -> list[list[PART]]:
        parts = [part for _, part in self._held]
        self._held = []
        if not parts:
            return []
        return [parts] if as_one else [[part] for part in parts]
