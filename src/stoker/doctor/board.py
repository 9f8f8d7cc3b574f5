"""What the ranks of one diagnosis tell each other: a few numbers in a file that all of them map.

Ranks that train together change what their loaders hand out at the same step, or one of them would stand in a
collective that the others never reach. The first rank calls a part for a step that none of them has made
yet; each looks at the board after every step. No collective of the script's own groups is used for it.
"""

import mmap
import os
import time
from pathlib import Path

# Steps from a call to when it counts. Ranks that meet in every step are less than one step apart.
AHEAD = 2
HOLDS, CANNOT = 1, 2

_PARTS = ("", "observe", "hold", "replay", "drain", "finish")
_STEP_BITS = 40
# Words of 8 bytes: the call, then for each rank its vote, whether it has finished, the steps it made, and
# whether it waits for the others at the end.
_MOST_RANKS = 1024
_OF_RANK = 4
_LOOK_EVERY = 0.002
_SIZE = 8 * (1 + _OF_RANK * _MOST_RANKS)


class Board:
    """One rank's hold on it. Every number is written by one rank alone, and in one piece."""

    def __init__(self, path: Path, *, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(number, _SIZE)
            self._words = memoryview(mmap.mmap(number, _SIZE)).cast("q")
        finally:
            os.close(number)
        self._heard = 0

    @property
    def leads(self) -> bool:
        """Whether it is this rank that calls."""
        return self.rank == 0

    @property
    def waits(self) -> bool:
        """Whether a call has been made that this rank has not followed yet."""
        return self._words[0] != self._heard

    def call(self, part: str, step: int) -> None:
        """Have every rank go on with a part once it has made this step."""
        self._words[0] = _PARTS.index(part) << _STEP_BITS | step

    def due(self, step: int) -> tuple[str, bool] | None:
        """The part that begins at this step, and whether this rank hears of it in time."""
        called = self._words[0]
        if called == self._heard:
            return None
        at = called & ((1 << _STEP_BITS) - 1)
        if step < at:
            return None
        self._heard = called
        return _PARTS[called >> _STEP_BITS], step == at

    def vote(self, vote: int) -> None:
        """Say whether this rank can be handed held batches: HOLDS or CANNOT."""
        self._words[self._at(self.rank)] = vote

    def votes(self) -> list[int]:
        """What each rank has said; 0 for nothing yet."""
        return [self._words[self._at(rank)] for rank in range(self.ranks)]

    def finish(self) -> bool:
        """This rank has told all; whether it is the last of them."""
        self._words[self._at(self.rank) + 1] = 1
        return all(self._words[self._at(rank) + 1] for rank in range(self.ranks))

    def note(self, step: int) -> None:
        """This rank has made a step."""
        self._words[self._at(self.rank) + 2] = step

    def furthest(self) -> int:
        """The step of the rank that has made most of them."""
        return max(self._words[self._at(rank) + 2] for rank in range(self.ranks))

    def meet(self, patience: float) -> bool:
        """Wait for all ranks to come here, no longer than so many seconds; whether they did."""
        self._words[self._at(self.rank) + 3] = 1
        until = time.monotonic() + patience
        while not all(self._words[self._at(rank) + 3] for rank in range(self.ranks)):
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_EVERY)
        return True

    def _at(self, rank: int) -> int:
        return 1 + _OF_RANK * rank
