"""The trial in a process that is one of several ranks: the same parts, begun by all ranks at the same step.

The first rank calls each part on the board. Replay is held where every rank can hold it; the drain is the
last that a rank gets from its loader: having told what that gave, it stops within that `next()`, the ranks
send each other some bytes, and the last of them ends the run. One that went on alone would wait for the
others in a collective.
"""

import os
import time
from pathlib import Path
from typing import Any, NoReturn

from stoker.doctor.board import AHEAD, CANNOT, HOLDS, Board
from stoker.doctor.experiments.links import measure
from stoker.doctor.held import samples_of
from stoker.doctor.iterators import in_queue
from stoker.doctor.padding import share_of_padding
from stoker.doctor.parts import Parts
from stoker.doctor.process import about_process
from stoker.doctor.trial import _FEW_BY_SEVERAL, Trial, _compiled
from stoker.scratch import Child
from stoker.watch.session import Session

# Steps in which the ranks must have their batches to hold, once they were told to.
_HOLD_STEPS = 32


def begin(child: Child, session: Session, parts: Parts, argument: dict[str, Any]) -> None:
    """Put the trial in place in a rank's process."""
    path = board_path(Path(argument["runs"]), argument["run"])
    RankTrial(child, session, parts, Board(path, rank=session.rank, ranks=argument["ranks"]))


class RankTrial(Trial):
    """One rank's part of it."""

    def __init__(self, child: Child, session: Session, parts: Parts, board: Board) -> None:
        self._board = board
        self._cannot: str | None = None
        self._in_step = True
        super().__init__(child, session, parts)

    # --- the loop's own calls ---------------------------------------------------------------------

    def _next_of_training(self, iterator: Any) -> Any:
        if self._part == "replay":
            self._count_handed(iterator)
            return self._held.next()
        if self._part == "drain":
            self._drain_to_the_end(iterator)
        batch = self._draw(iterator)
        if self._part == "hold" and self._cannot is None:
            self._held.keep(batch)
            if self._held.full:
                self._board.vote(HOLDS)
        return batch

    def _is_over(self, now: float) -> bool:
        if self._board.leads and not self._board.waits:
            following = self._following(now)
            if following is not None:
                self._board.call(following, self._steps + AHEAD)
        return self._board.waits

    def _following(self, now: float) -> str | None:
        """The part that the first rank would have next; None while this one goes on."""
        if self._part == "hold":
            votes = self._board.votes()
            if all(vote == HOLDS for vote in votes):
                return "replay" if self._parts.replay_steps else "drain"
            return "finish" if CANNOT in votes or self._updates > _HOLD_STEPS else None
        if not super()._is_over(now):
            return None
        if self._part == "replay":
            return "drain" if self._parts.drain_seconds else "finish"
        return {"warm": "observe", "observe": "hold"}[self._part]

    def _end_part(self) -> None:
        due = self._board.due(self._steps)
        if due is None:
            return
        part, in_time = due
        self._in_step = self._in_step and in_time
        self._leave()
        if part == "finish":
            self._finish(self._cannot)
        self._begin(part)
        if part == "observe":
            self._child.report("began", t=time.time(), compiled=_compiled())
        elif part == "hold":
            self._cannot = self._why_not()
            if self._cannot is not None:
                self._board.vote(CANNOT)
        elif part == "replay":
            self._replay_began = time.time()

    def _leave(self) -> None:
        if self._part == "observe":
            self._work.stop()
            self._session.describe()  # should the run be ended by force
            self._child.report(
                "observed",
                t=time.time(),
                draws=self._draws,
                compiled=_compiled(),
                work=self._work.sizes,
                loaders=[loader.to_json() for loader in self._session.account.loaders],
                cores_allowed=sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
                **about_process(self._session.observer),
            )
        elif self._part == "replay" and self._in_step:
            self._child.report("replay", t=time.time(), began=self._replay_began)
            self._child.report(
                "batch",
                bytes=self._held.nbytes(),
                padding=share_of_padding(self._held.leaves()),
                dataset=samples_of(self._iterator),
            )

    def _why_not(self) -> str | None:
        """Why this rank's loop can be observed and no more."""
        if not self._in_step:
            return "the ranks do not keep step: nothing is replayed or drained"
        if not self._fed:
            return "no DataLoader was drawn from"
        if self._by_several > _FEW_BY_SEVERAL * self._updates:
            return "several loaders feed the steps: none of them is replayed or drained"
        return None

    def _drain_to_the_end(self, iterator: Any) -> NoReturn:
        ready, drawn, began = in_queue(iterator), 0, time.perf_counter()
        while not self._has_drained(began):
            before = time.perf_counter()
            try:
                self._draw(iterator)
            except StopIteration:
                break
            drawn += 1
            if drawn > ready:
                self._drained.append(time.perf_counter() - before)
        self._tell_drain()
        self._finish()

    def _finish(self, why: str | None = None) -> NoReturn:
        self._session.finish("done")
        self._child.report("links", **measure(self._board))
        self._child.report("finished", why=why)
        if self._board.finish():
            self._child.end(self._steps)
        self._child.park()


def board_path(runs: Path, run: str) -> Path:
    """Where the ranks of a run meet; removed by whoever started them."""
    return runs / run / "board"
