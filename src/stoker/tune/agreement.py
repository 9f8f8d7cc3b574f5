"""When a trial of several ranks ends: after one step on all of them, which the first rank names beforehand.

A rank that stopped alone would leave the others waiting in a collective, and one that went on alone would
wait there itself. They tell each other on a board, beside the script's own collectives. One process alone
has nobody to agree with: it ends at once.
"""

from typing import NoReturn

import torch

from stoker.doctor.board import AHEAD, Board
from stoker.scratch import Child

_READY = 1


class Agreement:
    """One rank's part in it. Its file is in the run's own folder, and goes with that."""

    def __init__(self, child: Child, ranks: int) -> None:
        self._child, self.ranks = child, ranks
        self._board = Board(child.folder / "board", rank=child.rank, ranks=ranks) if ranks > 1 else None
        self._last: int | None = None

    @property
    def leads(self) -> bool:
        """Whether it is this rank that measures, and says when it is over."""
        return self._board is None or self._board.leads

    def note(self, made: int) -> None:
        """This rank has made so many steps."""
        if self._board is not None:
            self._board.note(made)

    def be_ready(self) -> None:
        """From now on this rank's steps count."""
        if self._board is not None:
            self._board.vote(_READY)

    @property
    def all_ready(self) -> bool:
        """Whether those of all ranks do."""
        return self._board is None or all(vote == _READY for vote in self._board.votes())

    def furthest(self, made: int) -> int:
        """Steps of the rank that has made most."""
        return made if self._board is None else max(made, self._board.furthest())

    def call(self, made: int) -> None:
        """Have all ranks end: soon, at a step that none has made yet."""
        if self._board is None:
            self._last = made
        elif not self._board.waits:
            self._board.call("finish", self.furthest(made) + AHEAD)

    def is_over(self, made: int) -> bool:
        """Whether this is the last step."""
        return made == self._last if self._board is None else self._board.due(made) is not None

    def leave(self, made: int) -> NoReturn:
        """Make no more steps; the run ends when all ranks have left."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # what the others wait for in the last collective is sent by then
        if self._board is None:
            self._child.end(made)
        self._child.leave(made, self.ranks)
